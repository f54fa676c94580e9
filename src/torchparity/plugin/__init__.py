"""The pytest plugin: the fixture `parity`, the marker of that name, and a folder of evidence for each test that fails.

pytest loads this file in every run of everyone who has torchparity installed. So it imports neither torch nor the rest
of torchparity before a test asks for it.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torchparity.plugin.silence import quiet

if TYPE_CHECKING:
    from torchparity.records import Verdict
    from torchparity.run.subject import Subject
    from torchparity.workers.pool import Pool

Backend = str | Callable[..., Any]

DEFAULT_BACKEND = "inductor"
FOLDER = "parity-artifacts"
FAIL, SKIP, PASS = "fail", "skip", "pass"
WORDS_LENGTH = 80
MARKER = "parity(backends, **options): check on these backends, with these options of torchparity.check"
NOT_SAME = ("differs", "unknown")
# What `check` takes besides a request.
BESIDES = ("input_sets", "progress")

problems_key = pytest.StashKey[list[str]]()
known_key = pytest.StashKey[set[str]]()
pool_key = pytest.StashKey["Pool"]()


class Misused(Exception):
    """A marker, an option or a setting that cannot mean anything: the message, and the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}\nhint: {hint}")


# --- options and settings ------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and the settings."""
    group = parser.getgroup("torchparity", "torchparity: compiled models against eager")
    group.addoption(
        "--parity-backend",
        action="append",
        metavar="NAME",
        help="Check on this backend instead of those of markers and settings; again, or with commas, for several.",
    )
    group.addoption(
        "--parity-unknown",
        choices=(FAIL, SKIP, PASS),
        help="What a test does that cannot be judged (default: fail).",
    )
    group.addoption(
        "--parity-artifacts",
        metavar="DIR",
        help=f"Where tests that fail leave their evidence (default: {FOLDER} in the root folder).",
    )
    group.addoption(
        "--parity-no-bundle",
        action="store_true",
        help="Do not look for the graph that fails: faster, and no bundle.",
    )
    group.addoption(
        "--parity-baseline",
        metavar="FILE",
        help="Failures of suites that are accepted (default: baseline.toml beside the suite).",
    )
    parser.addini("parity_backends", type="args", default=[], help="The backends of tests whose marker names none.")
    parser.addini("parity_unknown", default=FAIL, help="As --parity-unknown.")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and refuse settings that mean nothing."""
    config.addinivalue_line("markers", MARKER)
    config.stash[problems_key] = []
    config.stash[known_key] = set()
    if config.getini("parity_unknown") not in (FAIL, SKIP, PASS):
        raise pytest.UsageError(
            f"parity_unknown cannot be {config.getini('parity_unknown')!r}\nhint: write {FAIL}, {SKIP} or {PASS}"
        )
    if config.getoption("parity_backend") is not None and not words(config.getoption("parity_backend")):
        raise pytest.UsageError("--parity-backend names no backend\nhint: give a name, such as inductor")


def words(entries: Iterable[str]) -> list[str]:
    """Return the names in entries that may hold several, with commas between them, each once."""
    found = [word.strip() for entry in entries for word in entry.split(",")]
    return list(dict.fromkeys(word for word in found if word))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which backends were asked for, where they were."""
    asked = words(config.getoption("parity_backend") or config.getini("parity_backends"))
    return f"torchparity: on {', '.join(asked)}" if asked else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Look for no tests in artifacts: a bundle may hold copies of the user's own files, tests and conftest.py too."""
    bundle = collection_path / "case.json", collection_path / "repro.py"
    return True if collection_path == artifacts(config) or all(path.is_file() for path in bundle) else None


# --- one test for each backend -------------------------------------------------------------------


def options_of(node: pytest.Item | Any) -> tuple[list[Backend] | None, dict[str, Any]]:
    """Return the backends and the options that the markers of a test give; the nearest marker has the last word."""
    backends: list[Backend] | None = None
    options: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("parity"))):
        if len(mark.args) > 1 or (mark.args and "backends" in mark.kwargs):
            raise Misused(f"the marker of {node.nodeid} has too many arguments", "write parity(backends=[...])")
        given = dict(mark.kwargs)
        named = mark.args[0] if mark.args else given.pop("backends", None)
        named = [given.pop("backend")] if "backend" in given else named
        if named is not None:
            backends = list(named) if isinstance(named, list | tuple | set) else [named]
            if not backends:
                raise Misused(f"the marker of {node.nodeid} names no backend", "leave `backends` out, or name one")
        options |= given
    return backends, options


def backends_of(node: Any, config: pytest.Config) -> list[Backend]:
    """Return the backends of a test: the command line's, else its markers', else the settings', else inductor."""
    from_markers, options = options_of(node)
    known = config.stash[known_key]
    asked = words(config.getoption("parity_backend") or [])
    chosen: list[Backend] = [*asked] or from_markers or [*words(config.getini("parity_backends"))] or [DEFAULT_BACKEND]
    for backend in chosen:
        if not isinstance(backend, str) or backend not in known:
            check_backend(backend, "--parity-backend" if asked else node.nodeid)
        if isinstance(backend, str):
            known.add(backend)
    if options:
        check_options(options, node.nodeid)
    return chosen


def check_backend(backend: Backend, place: str) -> None:
    """Raise where torch.compile does not know a backend."""
    from torchparity.compilers.recipe import Recipe
    from torchparity.errors import UsageError

    try:
        Recipe(backend=backend).validated()
    except UsageError as error:
        raise Misused(f"{error.message} (in {place})", error.hint) from None


def check_options(options: Mapping[str, Any], place: str) -> None:
    """Raise where `torchparity.check` does not take an option, or not with this value."""
    from torchparity.errors import UsageError
    from torchparity.request import request_for

    try:
        request_for("torchparity.check", {name: value for name, value in options.items() if name not in BESIDES})
    except UsageError as error:
        raise Misused(f"{error.message} (in {place})", error.hint) from None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a suite that is named on the command line: every cell is a test."""
    if file_path.suffix != ".toml" or not parent.session.isinitpath(file_path):
        return None
    from torchparity.plugin.suites import SuiteFile

    return SuiteFile.from_parent(parent, path=file_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each backend of a test that uses the fixture; a marker without the fixture does nothing."""
    if "parity_backend" not in metafunc.fixturenames:
        if any(mark.name == "parity" for mark in metafunc.definition.own_markers):
            metafunc.config.stash[problems_key].append(
                f"{metafunc.definition.nodeid} has the marker parity and never uses the fixture: nothing is checked\n"
                "hint: take `parity` as an argument, or remove the marker"
            )
        return
    named = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize") if mark.args]
    if any("parity_backend" in (names.split(",") if isinstance(names, str) else names) for names in named):
        return  # The user's own list.
    config = metafunc.config
    backends: list[Backend] = []
    try:
        backends = backends_of(metafunc.definition, config)
    except Misused as problem:
        config.stash[problems_key].append(str(problem))
    if not backends and hasattr(config, "workerinput"):  # xdist: a worker that stops would be taken for a crash.
        pytest.fail(config.stash[problems_key][-1], pytrace=False)
    metafunc.parametrize("parity_backend", backends, ids=[name_of(backend) for backend in backends])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop before the first test where something cannot mean anything."""
    problems = session.config.stash[problems_key]
    if problems:
        raise pytest.UsageError(problems[0])


def name_of(backend: Backend) -> str:
    """Return a printable name of a backend."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


@pytest.fixture
def parity_backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that this test checks on."""
    # Reached where pytest does not parametrise: methods of a unittest class, fixtures asked for by name at run time.
    try:
        backends = backends_of(request.node, request.config)
        if len(backends) > 1:
            hint = "take the fixture `parity` as an argument of a test function, or name one backend"
            raise Misused(f"{request.node.nodeid} cannot be repeated for {len(backends)} backends", hint)
    except Misused as problem:
        told = str(problem)
    else:
        return backends[0]
    pytest.fail(told, pytrace=False)


@pytest.fixture
def parity(request: pytest.FixtureRequest, parity_backend: Backend) -> Parity:
    """Check models against their compiled form: `parity(model, args, kwargs, **options)`, as torchparity.check."""
    return Parity(request.node, parity_backend)


# --- one check -----------------------------------------------------------------------------------


class Parity:
    """Checks models in one test, on its backend, with the options of its markers."""

    def __init__(self, node: Any, backend: Backend) -> None:
        self.node = node
        self.config: pytest.Config = node.config
        self.backend = backend
        self.options = options_of(node)[1]
        self.failures = 0
        self.worst: Verdict | None = None

    def __repr__(self) -> str:
        return f"parity on {name_of(self.backend)}"

    def __call__(
        self,
        model: Callable[..., Any] | Subject,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Verdict:
        """Return the verdict where it is SAME; else fail the test, with the table."""
        __tracebackhide__ = True
        from torchparity.report.terminal import plain_text

        how = {"backend": self.backend, **self.options, **options}
        with quiet():
            verdict = judge(model, args, kwargs, how)
        status = verdict.status.value
        policy = self.config.getoption("parity_unknown") or self.config.getini("parity_unknown")
        reason = "; ".join(verdict.reasons) or "no reason given"
        if status == "same" or (status == "unknown" and policy != FAIL):
            self.record(verdict)
            if status == "unknown" and policy == SKIP:
                pytest.skip(f"parity is unknown: {reason}")
            return verdict
        self.failures += 1
        pytest.fail("\n".join([plain_text(verdict), "", *self.leave_evidence(verdict, model, args, kwargs, how)]))

    def leave_evidence(
        self, verdict: Verdict, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, how: dict[str, Any]
    ) -> list[str]:
        """Write what shows the failure; return where it is, and the command that judges it again."""
        from torchparity.verbs.evidence import NoEvidence, leave_bundle, leave_verdict

        folder = folder_of(self.node.nodeid, self.config)
        if self.failures > 1:  # The test goes on after a failure, as with subtests.
            folder /= f"failure-{self.failures}"
        here = self.config.invocation_params.dir
        try:
            leave_verdict(verdict, folder)
        except NoEvidence as error:
            self.record(verdict)
            return [f"the artifacts were not written: {error}"]
        self.record(verdict, folder)
        lines = [f"artifacts: {place(folder, here)}"]
        if verdict.status.value == "unknown" or self.config.getoption("parity_no_bundle"):
            return lines
        try:
            with quiet():
                bundle = leave_bundle(folder, model, args, kwargs, how, pool=workers(self.config))
        except NoEvidence as error:
            return [*lines, f"no bundle: {error}"]
        return [*lines, f"judge the graph that fails again: torchparity run {shlex.quote(place(bundle, here))}"]

    def record(self, verdict: Verdict, folder: Path | None = None) -> None:
        """Put the worst verdict of the test so far among its properties, which reach JUnit files and other plugins."""
        rank = ["same", "unknown", "differs"].index
        if self.worst is not None and rank(verdict.status.value) <= rank(self.worst.status.value):
            return
        self.worst = verdict
        leaf = verdict.worst
        facts = {
            "parity.backend": str(verdict.recipe.get("backend", "")),
            "parity.status": verdict.status.value,
            "parity.worst_leaf": leaf.path if leaf is not None else "",
            "parity.kind": verdict.kind,
            "parity.score": f"{max(leaf.score, leaf.aggregate_score):.6g}" if leaf is not None else "",
            "parity.artifacts": place(folder, self.config.rootpath) if folder is not None else "",
        }
        properties = self.node.user_properties
        properties[:] = [entry for entry in properties if entry[0] not in facts] + list(facts.items())


def judge(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, how: dict[str, Any]) -> Verdict:
    """Check a model; a machine that cannot answer is UNKNOWN, a question that means nothing fails the test."""
    __tracebackhide__ = True
    from torchparity.errors import ParityError, ResourceError
    from torchparity.records import Status, Verdict
    from torchparity.verbs.check import check

    try:
        return check(model, args, kwargs, **how)
    except ParityError as error:
        told = error
    if isinstance(told, ResourceError):
        reasons = (f"{told.message} (hint: {told.hint})",)
        return Verdict(status=Status.UNKNOWN, reasons=reasons, recipe={"backend": name_of(how["backend"])})
    pytest.fail(f"{told.message}\nhint: {told.hint}")


# --- what a test that fails leaves behind --------------------------------------------------------


def artifacts(config: pytest.Config) -> Path:
    """Return the folder of all artifacts."""
    given = config.getoption("parity_artifacts")
    return (config.invocation_params.dir / given) if given else config.rootpath / FOLDER


def folder_of(nodeid: str, config: pytest.Config) -> Path:
    """Return the folder of one test: what can be read of its name, and a digest of all of it."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid)[-WORDS_LENGTH:].strip("-.")
    digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return artifacts(config) / f"{plain or 'test'}-{digest}"


def workers(config: pytest.Config) -> Pool:
    """Return the worker that judges single graphs: started for the first test that fails, kept for the next ones."""
    from torchparity.verbs.asking import open_pool

    if pool_key not in config.stash:
        config.stash[pool_key] = open_pool(1)
    return config.stash[pool_key]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker, where there is one."""
    pool = config.stash.get(pool_key, None)
    if pool is not None:
        pool.close()


def place(path: Path, above: Path) -> str:
    """Return a path as seen from a folder above it, or whole."""
    return path.relative_to(above).as_posix() if path.is_relative_to(above) else str(path)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests that fail for parity, and where their evidence is."""
    rows = []
    for report in terminalreporter.stats.get("failed", []):
        facts = dict(getattr(report, "user_properties", ()))
        if facts.get("parity.status") in NOT_SAME:
            rows.append((report.nodeid, facts))
    if not rows:
        return
    terminalreporter.section("torchparity")
    terminalreporter.write_line(f"{len(rows)} test{'s' * (len(rows) != 1)} without parity, and where the evidence is:")
    for nodeid, facts in rows:
        leaf, kind, score = (facts.get(f"parity.{name}", "") for name in ("worst_leaf", "kind", "score"))
        detail = f"  {leaf} {kind} {score}".rstrip() if facts["parity.status"] == "differs" else ""
        terminalreporter.write_line(f"{facts['parity.status']:<8} {nodeid}{detail}")
        if facts.get("parity.artifacts"):
            terminalreporter.write_line(f"         {facts['parity.artifacts']}")
