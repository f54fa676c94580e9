"""Properties: nothing is missed by the walk, and a judgement does not depend on blocks, shapes or layouts."""

import math
from collections import deque, namedtuple
from types import SimpleNamespace
from unittest import mock

import torch
import torch.utils._pytree as pytree
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchparity import torchapi
from torchparity.compare import matrices
from torchparity.compare.integers import ExactBaseline
from torchparity.compare.judgement import THRESHOLD, Suspicion, Tolerance, judge_exact, judge_float, unravel
from torchparity.compare.leaves import walk
from torchparity.compare.matrices import Shape2d, as_real, matrix
from torchparity.compare.statistics import FloatBaseline

quickly = settings(max_examples=60, deadline=None, derandomize=True)
Pair = namedtuple("Pair", ["left", "right"])

keys = st.one_of(st.text(max_size=4), st.integers(-3, 3), st.none(), st.tuples(st.integers(0, 2), st.text(max_size=2)))


def containers(children):
    """Every container that the walk opens, around what is already there."""
    lists = st.lists(children, max_size=4)
    return st.one_of(
        lists,
        lists.map(tuple),
        lists.map(deque),
        st.tuples(children, children).map(lambda pair: Pair(*pair)),
        st.dictionaries(keys, children, max_size=4),
        st.dictionaries(st.from_regex(r"[a-z]{1,3}", fullmatch=True), children, min_size=1, max_size=3).map(
            lambda items: SimpleNamespace(**items)
        ),
    )


nested = st.recursive(
    st.one_of(st.builds(lambda: torch.zeros(1)), st.integers(), st.text(max_size=3), st.none()),
    containers,
    max_leaves=25,
)


def tensors_inside(value):
    """Find the tensors of a nested structure the plain way."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, SimpleNamespace):
        value = list(vars(value).values())
    if isinstance(value, list | tuple | deque):
        return [tensor for item in value for tensor in tensors_inside(item)]
    return []


@quickly
@given(nested)
def test_the_walk_reaches_every_tensor_once_with_a_path_of_its_own(value):
    found = list(walk(value, "output"))
    reached = [id(leaf) for _, leaf in found if isinstance(leaf, torch.Tensor)]
    assert sorted(reached) == sorted(map(id, tensors_inside(value)))
    paths = [path for path, _ in found]
    assert len(set(paths)) == len(paths)
    assert all(path.startswith("output") for path in paths)


@quickly
@given(nested)
def test_two_walks_of_one_value_are_the_same(value):
    assert [(path, id(leaf)) for path, leaf in walk(value)] == [(path, id(leaf)) for path, leaf in walk(value)]


@quickly
@given(nested)
def test_a_tree_is_mapped_as_torch_maps_it(value):
    def told(leaf):
        return f"{type(leaf).__name__} {id(leaf) if isinstance(leaf, torch.Tensor) else leaf}"

    assert torchapi.tree_map(told, value) == pytree.tree_map(told, value)
    assert list(map(told, torchapi.tree_leaves(value))) == list(map(told, pytree.tree_leaves(value)))


shapes = st.lists(st.integers(1, 6), max_size=5).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
seeds = st.integers(0, 10_000)


def random(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.complex(random(shape, seed), random(shape, seed + 1)).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def build(shape, dtype, seed):
    """A baseline with eager, a truth and three samples of noise, and eager itself."""
    wide = torch.complex128 if dtype.is_complex else torch.float64
    truth = random(shape, seed, wide)
    epsilon = torch.finfo(dtype).eps

    def sample(number):
        return (truth * (1 + epsilon * random(shape, seed + number))).to(dtype)

    eager = sample(1)
    baseline = FloatBaseline(eager, truth if torch.finfo(dtype).bits < 64 else None)
    for number in (2, 3, 4):
        baseline.add(sample(number))
    return baseline, eager, sample(5)


@quickly
@given(shapes, dtypes, seeds)
def test_eager_itself_scores_zero(shape, dtype, seed):
    baseline, eager, _ = build(shape, dtype, seed)
    judgement = judge_float(baseline, eager.clone(), Tolerance())
    assert judgement.score == judgement.aggregate_score == 0.0
    assert judgement.wrong_elements == 0
    assert judgement.nonfinite_position is None


@quickly
@given(shapes, dtypes, seeds, st.data())
def test_an_element_moved_far_is_seen_at_its_place(shape, dtype, seed, data):
    baseline, _, candidate = build(shape, dtype, seed)
    real = as_real(candidate).clone()
    place = data.draw(st.integers(0, real.numel() - 1))
    real.view(-1)[place] += data.draw(st.sampled_from([-50.0, 50.0]))
    moved = torch.view_as_complex(real) if dtype.is_complex else real
    judgement = judge_float(baseline, moved, Tolerance())
    assert judgement.score > THRESHOLD
    assert judgement.position == place
    assert torch.equal(real[unravel(place, tuple(real.shape))], real.view(-1)[place])


@quickly
@given(shapes, dtypes, seeds, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_what_is_not_finite_is_seen_at_its_place(shape, dtype, seed, value, data):
    assume(not dtype.is_complex)
    baseline, _, candidate = build(shape, dtype, seed)
    place = data.draw(st.integers(0, candidate.numel() - 1))
    candidate.view(-1)[place] = value
    judgement = judge_float(baseline, candidate, Tolerance())
    assert judgement.nonfinite_position == place


@quickly
@given(shapes, dtypes, seeds)
def test_the_matrix_holds_the_numbers_of_the_leaf_in_order(shape, dtype, seed):
    values = random(shape, seed, dtype)
    real = as_real(values)
    grid = matrix(values, Shape2d.of(tuple(real.shape)))
    assert grid.dim() == 2
    back = grid.reshape(real.shape)
    assert torch.equal(torch.view_as_complex(back.contiguous()) if dtype.is_complex else back, values)


@quickly
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple), seeds, st.randoms())
def test_strides_do_not_change_a_judgement(shape, seed, shuffler):
    baseline, _, candidate = build(shape, torch.float32, seed)
    order = list(range(len(shape)))
    shuffler.shuffle(order)
    back = [order.index(axis) for axis in range(len(shape))]
    strided = candidate.permute(order).contiguous().permute(back)
    assert torch.equal(strided, candidate)
    left, right = (judge_float(baseline, values, Tolerance()) for values in (strided, candidate))
    assert (left.score, left.position, left.allowed) == (right.score, right.position, right.allowed)
    assert math.isclose(left.aggregate_score, right.aggregate_score, rel_tol=1e-3, abs_tol=1e-3)


@quickly
@given(
    st.lists(st.integers(1, 20), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seeds,
    st.integers(1, 50),
    st.sampled_from([None, math.nan, math.inf]),
)
def test_blocks_do_not_change_a_judgement(shape, dtype, seed, size, odd):
    def judged():
        baseline, eager, candidate = build(shape, dtype, seed)
        candidate.view(-1)[-1] += 1.0
        if odd is not None:
            candidate.view(-1)[candidate.numel() // 2] = odd
            eager.view(-1)[0] = odd
            baseline = FloatBaseline(eager, None)
            baseline.add(candidate)
        suspicion = Suspicion(baseline, candidate, Tolerance())
        return judge_float(baseline, candidate, Tolerance()), suspicion.indices.tolist()

    whole, suspects = judged()
    with mock.patch.object(matrices, "BLOCK", {"cpu": size, "other": size}):
        pieces, found = judged()
    assert found == suspects
    assert (pieces.position, pieces.wrong_elements, pieces.nonfinite_position) == (
        whole.position,
        whole.wrong_elements,
        whole.nonfinite_position,
    )
    for name in ("score", "aggregate_score", "allowed", "eager_error", "candidate_error", "candidate_rms_error"):
        assert math.isclose(getattr(pieces, name), getattr(whole, name), rel_tol=1e-3, abs_tol=1e-9), name


@quickly
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.data())
def test_an_integer_is_forgiven_exactly_where_noise_flips_it(values, data):
    eager = torch.tensor(values)
    flipped = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    wrong = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    baseline = ExactBaseline(eager)
    baseline.add(eager + flipped.long())
    count, position = judge_exact(baseline, eager - wrong.long())
    unforgiven = (wrong & ~flipped).nonzero().flatten().tolist()
    assert count == len(unforgiven)
    assert position == (unforgiven[0] if unforgiven else None)
