"""Debian packages of any architecture, downloaded and unpacked below .setup, not installed.

Uses the package sources of this machine with lists and a cache of its own, so that nothing of the machine changes and
no privilege is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

LISTS_STAY_FRESH_S = 24 * 3600
SOURCES = Path("/etc/apt/sources.list")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class PackageError(Exception):
    """Something cannot be had; the text is for people."""


class Packages:
    """What the package sources of this machine offer for one architecture.

    Args:
        architecture: Debian's name of it.
        folder: Where lists and packages are kept.

    Raises:
        PackageError: Without apt.
    """

    def __init__(self, architecture: str, folder: Path) -> None:
        missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
        if missing:
            raise PackageError(f"needs {' and '.join(missing)}, which Debian and Ubuntu have")
        self.architecture = architecture
        self._folder = folder
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()  # no package is installed in there
        self._settings: dict[str, object] = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::State": folder,
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Cache::archives": folder / "archives",
        }
        self._update()

    def add_backports(self) -> None:
        """Prefer from now on what Debian offers anew for the release that this machine has.

        Raises:
            PackageError: Where the release has no backports.
        """
        targets = self._run(
            "apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI) $(CODENAME)"
        )
        found = re.search(r"^Debian (\S+) ([a-z]+)$", targets, re.MULTILINE)
        if found is None:
            raise PackageError("needs Debian's backports, and saw no package source of Debian's")
        suite = f"{found.group(2)}-backports"
        keys = f"[signed-by={KEYS}] " if KEYS.exists() else ""
        own = SOURCES.read_text(encoding="utf-8") if SOURCES.exists() else ""
        sources = self._folder / "sources.list"
        sources.write_text(f"{own}\ndeb {keys}{found.group(1)} {suite} main\n", encoding="utf-8")
        self._settings |= {"Dir::Etc::sourcelist": sources, "APT::Default-Release": suite}
        (self._folder / "updated").unlink()
        self._update()

    def version(self, name: str) -> str:
        """Return the version of a package that would be taken.

        Raises:
            PackageError: When there is no such package.
        """
        text = self._run("apt-cache", "policy", name)
        found = re.search(r"Candidate: (\d\S*)", text)
        if found is None:
            raise PackageError(f"needs the package {name}, which the package sources do not have")
        return found.group(1)

    def newest_kernel(self) -> str:
        """Return the release that Debian's meta package of kernels brings, as `uname -r` says it.

        Raises:
            PackageError: When the sources have none.
        """
        text = self._run("apt-cache", "depends", f"linux-image-{self.architecture}")
        found = re.search(r"Depends: linux-image-(\d\S*)", text)
        if found is None:
            raise PackageError(
                f"needs Debian's linux-image-{self.architecture}, which the package sources do not have"
            )
        return found.group(1)

    def unpack(self, name: str, *packages: str, with_dependencies: bool = False) -> Path:
        """Return a folder with the contents of packages; what was unpacked before is kept.

        Args:
            name: What tells this set of packages from others.
            packages: Names.
            with_dependencies: Everything that they need too.

        Raises:
            PackageError: When one cannot be had.
        """
        unpacked = self._folder / name
        if unpacked.exists():
            return unpacked
        draft = self._folder / f"{name}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        if with_dependencies:
            options = ("--yes", "--download-only", "--no-install-recommends")
            self._run("apt-get", "install", *options, *packages)
            archives = self._folder / "archives"
        else:
            archives = draft / "archives"
            archives.mkdir()
            self._run("apt-get", "download", *packages, cwd=archives)
        for archive in sorted(archives.glob("*.deb")):
            self._extract(archive, draft)
            archive.unlink()
        return draft.rename(unpacked)

    def unpack_files(self, name: str, files: Sequence[Path]) -> Path:
        """Return a folder with the contents of package files, in place of what was unpacked there before.

        Args:
            name: Of the folder.
            files: Packages.

        Raises:
            PackageError: When one is not a package.
        """
        unpacked = self._folder / name
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir()
        for file in files:
            self._extract(file, unpacked)
        return unpacked

    def _extract(self, archive: Path, folder: Path) -> None:
        command = ["dpkg-deb", "--extract", str(archive), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PackageError(f"cannot unpack {archive.name}: {done.stderr.strip()}")

    def _update(self) -> None:
        stamp = self._folder / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_STAY_FRESH_S:
            return
        self._run("apt-get", "update")
        stamp.touch()

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = [f"--option={name}={value}" for name, value in self._settings.items()]
        command = [program, "--quiet", *options, *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no words"])[-1]
            raise PackageError(
                f"cannot get packages for {self.architecture}: {program} said: {last}"
            )
        return done.stdout
