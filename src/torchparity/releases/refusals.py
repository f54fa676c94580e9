"""Why an environment could not be made, in two lines: pip's own words are a page."""

from __future__ import annotations

import platform
import re

from torchparity.errors import ResourceError
from torchparity.releases.scripts import Ended, cut, error_line, last_line
from torchparity.releases.versions import order

NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|Max retries exceeded|"
    r"Connection(Error| refused| reset| broken)|Read timed out|ProxyError|Network is unreachable"
)
NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
NO_RELEASE = re.compile(r"No matching distribution found for torch==(?P<which>\S+)")
VERSIONS = re.compile(r"requirement torch==.*\(from versions: (?P<versions>[^)]*)\)")
NO_VENV = re.compile(r"ensurepip is not available|No module named (venv|ensurepip)")


def refusal(asked: str, ended: Ended, *, seconds: float) -> ResourceError:
    """Return the error that says why torch could not be installed, by how venv or pip ended."""
    here = f"for Python {platform.python_version()} on {platform.machine()} {platform.system()}"
    if ended.late:
        return ResourceError(f"pip takes longer than {seconds:g} s", hint="is the network that slow? try again")
    if NO_ROOM.search(ended.output):
        hint = "TORCHPARITY_CACHE names another folder for environments; they take 1 to 6 GB each"
        return ResourceError(f"there is no room for torch {asked}: the disk is full", hint=hint)
    if NO_VENV.search(ended.output):
        return ResourceError("this Python cannot make environments", hint="on Debian: apt install python3-venv")
    known = known_versions(ended.output)
    if NO_NETWORK.search(ended.output) and not known:
        hint = "--index-url names another package index; --python an interpreter that has this torch"
        return ResourceError(f"pip does not reach its index, so there is no torch {asked}", hint=hint)
    if NO_RELEASE.search(ended.output):
        hint = "make an environment with another Python yourself, and name its interpreter: --python PATH"
        return ResourceError(f"pip finds no torch {asked} {here}{known}", hint=hint)
    errors = [line for line in ended.output.splitlines() if line.startswith("ERROR: ")]
    told = cut(errors[0].removeprefix("ERROR: ")) if errors else last_line(ended.output)
    return ResourceError(f"torch {asked} could not be installed: {told}", hint="what does pip say by itself?")


def known_versions(output: str) -> str:
    """Say which releases pip finds instead."""
    found = VERSIONS.search(output)
    versions = [word.strip() for word in found["versions"].split(",")] if found else []
    versions = sorted((word for word in versions if word[:1].isdigit()), key=order)
    return f"; it finds {versions[0]} to {versions[-1]}" if versions else ""


def without_torch(what: str, ended: Ended) -> ResourceError:
    """Return the error that says that an interpreter does not import torch."""
    told = error_line(ended.output) or last_line(ended.output) or f"exit code {ended.exit_code}"
    return ResourceError(f"{what}, and `import torch` fails: {told}", hint="does it need a library of the system?")
