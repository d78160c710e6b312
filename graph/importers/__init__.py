"""Importers: one module a format, from files of other tools to requests that a store takes."""
