"""The sentences that a verdict can carry as reasons, each in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchparity.records import Failure, GraphDifference

SHOWN = 4


def listed(names: Iterable[str]) -> str:
    """Join names, the first few of many."""
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def differing_leaves(differing: int, leaves: int, worst: str, kind: str) -> str:
    """Say how many leaves differ, and which is worst."""
    return f"{differing} of {leaves} leaves differ; the worst is {worst} ({kind})"


def only_facts(kinds: Iterable[str]) -> str:
    """Say that every number agrees."""
    names = sorted(set(kinds))
    options = " ".join(f"--ignore {name}" for name in names)
    return f"every value agrees: only {' and '.join(names)} differs ({options} if you do not mind)"


def all_inside(leaves: int) -> str:
    """Say that nothing differs."""
    return f"all {leaves} leaves lie within the model's own rounding noise"


def together(score: float, what: str, where: str) -> str:
    """Say that the leaves differ together though none does alone."""
    return (
        f"no leaf alone lies outside the noise; together they lie {score:.1f} noise units off, "
        f"as if the {what} of {where} were wrong"
    )


def not_together(why: str) -> str:
    """Say why leaves in half precision were judged one by one only."""
    return f"the leaves were judged one by one, not together ({why.splitlines()[0][:160]})"


def machine_lacks(failure: Failure) -> str:
    """Say that the machine, and not the compiler, is why nothing was compiled."""
    return f"this machine lacks {failure.lacking} ({failure.type} while compiling)"


def device_fails(name: str, failure: Failure) -> str:
    """Say what the candidate did to the device."""
    return f"{name} ends in a {failure.type} ({failure.phase}): {failure.message}"


def process_lost() -> str:
    """Say what that means for the process."""
    return "the device of this process is lost: nothing can be computed on it until a new process is started"


def noise_failed(failure: Failure) -> str:
    """Say that the model does not run where its roundings are moved."""
    return f"with its roundings moved the model itself raises {failure.type}: {failure.message[:200]}"


def noise_unknown() -> str:
    """Say that nobody knows how much rounding there is."""
    return "how far correct results lie apart is not known: no run with noise came to its end"


def not_taken(name: str, error: BaseException) -> str:
    """Say that a compiler refuses such a model before it compiles anything."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{name} does not take this model: {type(error).__name__}: {first}"


def nothing_to_compare() -> str:
    """Say that the model gives nothing that could be compared."""
    return "the model returns nothing that can be compared"


def not_deterministic(paths: Iterable[str]) -> str:
    """Say which leaves eager itself does not repeat."""
    return f"the model itself is not deterministic at {listed(paths)}"


def uninitialised(paths: Iterable[str]) -> str:
    """Say which leaves are read from memory that nobody wrote to."""
    return f"the model itself returns uninitialised memory at {listed(paths)}"


def undefined_casts() -> str:
    """Eager made integers of floats that they cannot hold."""
    return "the model makes integers of numbers that they cannot hold: what comes of that is not defined, nor judged"


def not_compared(paths: Iterable[str]) -> str:
    """Say which leaves have numbers that could not be held against each other."""
    return f"the numbers at {listed(paths)} could not be compared, which is no agreement"


def not_judged(path: str, why: str) -> str:
    """Say that our own judgement failed at a leaf."""
    return f"{path} was not judged: torchparity itself failed there ({why}); please report this"


def flushed(paths: Iterable[str]) -> str:
    """Say where numbers below the least normal one came out as zero."""
    return f"at {listed(paths)} numbers too small to be normal were flushed to zero, as vector code does"


def model_raises(failure: Failure) -> str:
    """Say that eager raises."""
    who = "the optimizer" if failure.phase == "optimizer" else "the model itself"
    return f"{who} raises {failure.type}: {failure.message}"


def raises_elsewhere() -> str:
    """Say that eager raises on another rank, so that this one has nothing to compare."""
    return "the model itself raises on another rank"


def graphs_differ(difference: GraphDifference) -> str:
    """Say where the graph of one rank is not that of another, and how it reads on both."""
    rank, against = f"rank {difference.rank}", f"rank {difference.against}"
    line = f" ({difference.source})" if difference.source else ""
    node = f" at {difference.node}{line}" if difference.node else ""
    return (
        f"{rank} and {against} do not compile the same: in graph {difference.graph}{node} "
        f"{rank} has {difference.here}, {against} has {difference.there}"
    )


def candidate_raises(failure: Failure) -> str:
    """Say that the candidate raises, and at which stage."""
    return f"the compiled model raises {failure.type} at {failure.stage}: {failure.message}"


def accepts_invalid(failure: Failure) -> str:
    """Say that the candidate returns where eager raises."""
    return f"the compiled model returns a result where the model itself raises {failure.type}: {failure.message}"


def other_random_numbers(backend: str, paths: Iterable[str]) -> str:
    """Say that a backend draws random numbers of its own."""
    return f"the backend {backend} does not draw eager's random numbers, so that {listed(paths)} cannot be judged"


def only_replayed() -> str:
    """Say that the candidate is wrong from its third run on, when what was recorded is replayed."""
    return "it differs only when it is replayed: the runs that warm up and record are right (CUDA graphs)"


def on_other_data() -> str:
    """Say that only data show it which the candidate was not recorded with."""
    return "replayed with other inputs and updated parameters, the compiled model gives other numbers (CUDA graphs)"


def closely(score: float, look: int) -> str:
    """Say that a leaf came close to differing on the model's own data, and that others show it."""
    return f"close to differing on its own data (score {score:.1f}), and beyond it on other data (look {look})"


def given_out_again(path: str, other: str) -> str:
    """Say that a later call writes over what an earlier one returned."""
    whose = "itself" if path == other else other
    return f"its memory is that of {whose} of an earlier call: what a caller still holds is written over"


def changes_later() -> str:
    """Say that what was returned is not what it was, once the candidate was called again."""
    return "it holds other numbers once the model is called again: what a caller still holds is written over"


def out_of_bounds(paths: Sequence[str], detail: str) -> str:
    """Say that the candidate writes where it must not."""
    rest = f", and beside {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"the compiled model writes outside {paths[0].removeprefix('bounds.')}: {detail}{rest}"


def wrong_choices(wrong: int, choices: int, kernels: int) -> str:
    """Say that some kernels are wrong which tuning may take."""
    return f"of {choices} kernels that tuning may take for {kernels} operations, {wrong} give other results"


def right_choices(choices: int, kernels: int, unusable: int) -> str:
    """Say that every kernel is right which tuning may take."""
    rest = f" ({unusable} more cannot be used here)" if unusable else ""
    return f"each of the {choices} kernels that tuning may take for {kernels} operations is right{rest}"


def wrong_choice(kernel: str, shapes: str, choice: str) -> str:
    """Name one that is wrong."""
    return f"{kernel}({shapes}) by {choice} is wrong"


def wrong_round(place: int) -> str:
    """Say that choices are wrong together, or took the device along, so that none has a name."""
    return f"choice {place + 1} of all operations together is wrong, and no one of them by itself could be named"


def not_between_zones(failure: Failure) -> str:
    """Say that nobody looked for writes outside of tensors."""
    return f"between red zones the compiled model raises {failure.type}: nobody looked for writes outside its tensors"


def not_on_other_data(error: BaseException) -> str:
    """Say that a recorded model was not replayed on other data."""
    return (
        f"what was recorded could not be judged on other data: {str(error).splitlines()[0] if str(error) else error!r}"
    )


def no_choices() -> str:
    """Say that there is nothing to choose."""
    return "nothing is tuned here: there is one kernel for each operation (--mode max-autotune lets inductor tune)"


def flaky(times: int, runs: int) -> str:
    """Say that the candidate is not always wrong."""
    return f"the compiled model is not deterministic: it differs in {times} of {runs} runs"


def not_promoted(operations: Mapping[str, int]) -> str:
    """Name the operations that have no float64 form."""
    return f"no float64 kernel for {listed(operations)}: its own precision stands in the reference there"


def without_reference(why: str) -> str:
    """Say that there is no float64 reference."""
    return f"judged without a float64 reference ({why[:160]}): the noise of eager alone decides"


def random_without_reference() -> str:
    """Say that the float64 reference has other random numbers than eager."""
    return (
        "a fused kernel draws random numbers that have no float64 form (dropout in attention, say): what depends on "
        "them is judged by the noise of eager alone"
    )


def nothing_compiled(left: Sequence[str]) -> list[str]:
    """Say that the compiler was never used, and why, where it has told."""
    why = "nothing was compiled: no graph ran, so that eager was compared with eager (--allow-eager if you want that)"
    return [why, f"left to Python: {listed(left)} (`torchparity explain` tells where)"] if left else [why]


def kinks(paths: Iterable[str]) -> str:
    """Say where the candidate stands on the other side of a kink or tie."""
    return f"at {listed(paths)} rounding decides a tie or a kink, and noise reaches the compiled values"


def by_chance(paths: Iterable[str]) -> str:
    """Say where it is chance that eager has a number."""
    return (
        f"at {listed(paths)} most runs whose roundings are moved give Inf or NaN: which number eager has there is"
        " chance, and the compiled one cannot be judged"
    )


def right_runs(paths: Iterable[str], runs: int) -> str:
    """Say where right runs are as far off as the candidate."""
    count = f"{runs} more runs" if runs > 1 else "one more run"
    return f"at {listed(paths)} eager itself, with its roundings moved, is about as far off within {count}"


def float64_agrees(paths: Iterable[str]) -> str:
    """Say where float64 decides as the candidate does, and not as eager."""
    return f"at {listed(paths)} rounding decides a step, and float64 stands on the compiled model's side of it"


def other_branch(paths: Iterable[str]) -> str:
    """Say where a right run takes the branch that the candidate takes."""
    return (
        f"at {listed(paths)} rounding decides what the model runs, and a right run decides as the compiled model does"
    )


def differs_undropped() -> str:
    """Say that the candidate differs where nothing is random."""
    return "with every dropout turned off, so that no random number matters, the compiled model gives other numbers"


def same_undropped(leaves: int) -> str:
    """Say that all but the dropouts agree."""
    return f"with every dropout turned off all {leaves} leaves agree: only what is dropped could not be judged"


def on_exact_data() -> str:
    """Say that only data without any rounding show it."""
    return "on exact data (small integers, so that no sum rounds) the compiled model gives other numbers"


def exact_leaves(exact: int, leaves: int) -> str:
    """Say how much exact data could show."""
    return f"on exact data {exact} of {leaves} leaves stay exact, and were compared without any tolerance"


def nearer(count: int) -> str:
    """Say that the compiled result is better than eager's."""
    return f"the compiled model is nearer to float64 than eager at {count} leaves"


def no_gradient() -> str:
    """Say that there was no backward pass to compare."""
    return "nothing requires a gradient, so that no backward pass was compared"


def out_of_memory(run: str) -> str:
    """Say that memory ran out in the candidate."""
    return f"out of memory in the run '{run}'"


def crashed(backend: str, how: str) -> str:
    """The compiled model takes the process along."""
    return f"the model runs, and compiled by {backend} it {how}"


def no_answer(how: str, phase: str, place: str = "") -> str:
    """The process that was to answer did not."""
    at = f", at {place}" if place else ""
    return f"no answer: the process {how}" + (f" during '{phase}'{at}" if phase else " before the first run")


def died_later() -> str:
    """A process that has run the compiled model dies by itself in a run of eager's."""
    return "the compiled model had run in it: code that writes outside of its memory ends a process like this, later"
