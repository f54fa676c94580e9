from itertools import combinations

import pytest
from tests.report.samples import nodes

from torchparity.report.layout import MOST, NODE_HEIGHT, NODE_WIDTH, lay_out
from torchparity.report.machine import plain_data


def graph(count):
    return plain_data(nodes(count))


@pytest.mark.parametrize("count", [2, 20, 200])
def test_no_two_nodes_overlap(count):
    placed = lay_out(graph(count)).nodes
    assert len(placed) == count
    for one, other in combinations(placed, 2):
        assert abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT


def test_a_node_stands_below_what_it_uses():
    plan = lay_out(graph(20))
    spots = {node.number: node for node in plan.nodes}
    assert all(spots[start].y < spots[end].y for start, end in plan.edges)


def test_a_chain_stands_straight_and_its_inputs_beside_it():
    drawn = graph(20)
    plan = lay_out(drawn)
    operations = {node.x for node in plan.nodes if drawn[node.number]["role"] == "operation"}
    assert max(operations) - min(operations) < 1e-6


def test_everything_is_inside_the_picture():
    plan = lay_out(graph(200))
    assert all(NODE_WIDTH / 2 <= node.x <= plan.width - NODE_WIDTH / 2 for node in plan.nodes)
    assert all(NODE_HEIGHT / 2 <= node.y <= plan.height - NODE_HEIGHT / 2 for node in plan.nodes)


def test_a_deep_graph_is_folded_to_the_shape_of_a_screen():
    plan = lay_out(graph(500))
    assert 0.7 < plan.width / plan.height < 3.2


def test_of_a_huge_graph_the_surroundings_of_the_culprit_are_drawn():
    plan = lay_out(graph(MOST + 500), culprit=MOST + 400)
    numbers = {node.number for node in plan.nodes}
    assert (len(numbers), plan.left_out) == (MOST, 500)
    assert MOST + 400 in numbers


def test_nothing_is_drawn_of_nothing():
    assert lay_out([]).nodes == ()
