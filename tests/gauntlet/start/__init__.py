"""Jobs that lose time from their first step on, or every so many steps, and quiet jobs of several shapes."""
