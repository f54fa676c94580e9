"""Backends that are wrong on purpose: fixture `backends`. A file, because a bundle carries the file of its backend."""

import time

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd


def calls(graph_module, name):
    return [node for node in graph_module.graph.nodes if name in str(node.target) and node.op == "call_function"]


def scaled(graph_module, node, factor):
    users = list(node.users)
    with graph_module.graph.inserting_after(node):
        wrong = graph_module.graph.call_function(torch.ops.aten.mul.Tensor, (node, factor))
    for user in users:
        user.replace_input_with(node, wrong)
    graph_module.recompile()


def fused_only(graph_module, inputs):
    """Wrong in `sin` only where neither it nor what uses it is an output."""
    outputs = set(graph_module.graph.output_node().all_input_nodes)
    for node in calls(graph_module, "aten.sin."):
        if not ({node, *node.users} & outputs):
            scaled(graph_module, node, 1.5)
    return make_boxed_func(graph_module.forward)


def doubles_sine(graph_module, inputs):
    for node in calls(graph_module, "aten.sin."):
        scaled(graph_module, node, 2.0)
    return make_boxed_func(graph_module.forward)


def doubles_sine_slowly(graph_module, inputs):
    """Takes very long where all of it is one chain."""
    if len(calls(graph_module, "aten.")) > 8 and len(graph_module.graph.output_node().all_input_nodes) == 1:
        time.sleep(200)
    return doubles_sine(graph_module, inputs)


def refuses(graph_module, inputs):
    if calls(graph_module, "aten.cos."):
        raise NotImplementedError("no cosine here")
    return make_boxed_func(graph_module.forward)


def wrong_gradient(graph_module, inputs):
    for node in calls(graph_module, "aten.tanh_backward"):
        scaled(graph_module, node, 1.25)
    return make_boxed_func(graph_module.forward)


def wrong_gradient_behind_others(graph_module, inputs):
    """Wrong where the gradient that comes in was computed."""
    for node in calls(graph_module, "aten.tanh_backward"):
        if node.args[0].op != "placeholder":
            scaled(graph_module, node, 1.25)
    return make_boxed_func(graph_module.forward)


def right(graph_module, inputs):
    return make_boxed_func(graph_module.forward)


doubling = aot_autograd(fw_compiler=doubles_sine)
doubling_slowly = aot_autograd(fw_compiler=doubles_sine_slowly)
hiding = aot_autograd(fw_compiler=fused_only)
refusing = aot_autograd(fw_compiler=refuses)
backwards = aot_autograd(fw_compiler=right, bw_compiler=wrong_gradient)
together = aot_autograd(fw_compiler=right, bw_compiler=wrong_gradient_behind_others)


def wrong_sine(graph_module, inputs, **options):
    return doubling(graph_module, inputs)


def slow_wrong_sine(graph_module, inputs, **options):
    return doubling_slowly(graph_module, inputs)


def wrong_together(graph_module, inputs, **options):
    return together(graph_module, inputs)


def hides(graph_module, inputs, **options):
    return hiding(graph_module, inputs)


def refuses_cosine(graph_module, inputs, **options):
    return refusing(graph_module, inputs)


def wrong_backwards(graph_module, inputs, **options):
    return backwards(graph_module, inputs)


def wrong_under_a_mode(graph_module, inputs, *, mode=None, options=None):
    """Wrong only where torch.compile hands it a mode."""
    if mode is None:
        return graph_module.forward
    return lambda *args: tuple(value * 1.5 for value in graph_module(*args))
