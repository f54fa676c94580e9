"""What is checked: the calls, and every module and tensor that a model reaches."""

import functools
from types import SimpleNamespace

import pytest
import torch

from torchparity.errors import UsageError
from torchparity.run.subject import Subject, as_inputs, loose_tensors, owned_modules

X = torch.ones(2, 3)
GLOBAL_MODULE = torch.nn.Linear(3, 3)
GLOBAL_TENSOR = torch.ones(3)
GLOBAL_LIST = [torch.nn.Linear(3, 3), torch.ones(1)]


class Plain(torch.nn.Module):
    """A module of the user's own (its class does not live in torch)."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight


def test_one_call_is_args_and_kwargs():
    ((args, kwargs),) = Subject(torch.relu, args=[X], kwargs={"y": 1}).calls()
    assert args == (X,)
    assert kwargs == {"y": 1}


def test_a_lone_tensor_is_one_argument():
    ((args, _),) = Subject(torch.relu, args=X).calls()
    assert len(args) == 1
    assert args[0] is X


def test_several_calls_in_order():
    calls = Subject(torch.relu, input_sets=[X, (X, 2), ((X,), {"y": 3}), {"z": X}]).calls()
    assert [len(args) for args, _ in calls] == [1, 2, 1, 0]
    assert [list(kwargs) for _, kwargs in calls] == [[], [], ["y"], ["z"]]


def test_a_pair_of_which_the_second_is_no_mapping_is_two_arguments():
    args, kwargs = as_inputs(([1, 2], [3]))
    assert args == ([1, 2], [3])
    assert kwargs == {}


def test_an_input_set_that_means_nothing_is_a_usage_error():
    with pytest.raises(UsageError, match="cannot be a int") as caught:
        as_inputs(3)
    assert "(args, kwargs)" in caught.value.hint


def test_the_title_is_the_name_or_the_class():
    assert Subject(GLOBAL_MODULE).title() == "Linear"
    assert Subject(as_inputs).title() == "as_inputs"
    assert Subject(GLOBAL_MODULE, name="mine").title() == "mine"


# --- what a model reaches ------------------------------------------------------------------------


def test_a_module_owns_itself():
    model = Plain()
    assert owned_modules(model) == {"": model}
    assert loose_tensors(model) == {}


@pytest.mark.parametrize("module", [Plain(), torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3))])
def test_a_closure_is_searched(module):
    weight = torch.ones(3)

    def function(x):
        return module(x) * weight

    assert owned_modules(function) == {"module": module}
    assert loose_tensors(function)["weight"] is weight


def test_globals_that_a_function_names_are_searched():
    def function(x):
        return GLOBAL_MODULE(x) * GLOBAL_TENSOR

    assert owned_modules(function) == {"GLOBAL_MODULE": GLOBAL_MODULE}
    assert loose_tensors(function)["GLOBAL_TENSOR"] is GLOBAL_TENSOR


def test_globals_that_a_function_does_not_name_are_left_alone():
    def function(x):
        return x + 1

    assert owned_modules(function) == {}
    assert loose_tensors(function) == {}


def test_a_list_of_modules_is_searched():
    def function(x):
        return GLOBAL_LIST[0](x) * GLOBAL_LIST[1]

    assert list(owned_modules(function).values()) == [GLOBAL_LIST[0]]
    assert loose_tensors(function)["GLOBAL_LIST[1]"] is GLOBAL_LIST[1]


def test_functions_that_a_function_calls_are_searched():
    def inner(x):
        return GLOBAL_MODULE(x)

    def outer(x):
        return inner(x)

    assert list(owned_modules(outer).values()) == [GLOBAL_MODULE]


def test_a_global_inside_a_lambda_is_found():
    def function(x):
        return (lambda y: GLOBAL_MODULE(y))(x)

    assert list(owned_modules(function).values()) == [GLOBAL_MODULE]


def test_a_bound_method_of_a_module_is_searched():
    model = Plain()
    assert list(owned_modules(model.forward).values()) == [model]


def test_a_bound_method_of_a_plain_object_is_searched():
    class Trainer:
        def __init__(self):
            self.model = Plain()
            self.scale = torch.ones(3)

        def predict(self, x):
            return self.model(x) * self.scale

    trainer = Trainer()
    assert list(owned_modules(trainer.predict).values()) == [trainer.model]
    assert any(tensor is trainer.scale for tensor in loose_tensors(trainer.predict).values())


def test_a_callable_object_is_searched():
    class Pipeline:
        def __init__(self):
            self.stages = [Plain(), Plain()]
            self.scale = torch.ones(3)

        def __call__(self, x):
            return self.stages[1](self.stages[0](x)) * self.scale

    pipeline = Pipeline()
    assert owned_modules(pipeline) == {"stages[0]": pipeline.stages[0], "stages[1]": pipeline.stages[1]}
    assert loose_tensors(pipeline)["scale"] is pipeline.scale


def test_a_plain_object_in_a_closure_is_searched():
    holder = SimpleNamespace(model=Plain())

    def function(x):
        return holder.model(x)

    assert list(owned_modules(function).values()) == [holder.model]


def test_every_argument_of_a_partial_is_found():
    left, right = Plain(), Plain()
    first, second = torch.ones(1), torch.zeros(1)

    def function(a, b, x, *, c, d):
        return a(x) + b(x) + c + d

    model = functools.partial(function, left, right, c=first, d=second)
    assert {id(module) for module in owned_modules(model).values()} == {id(left), id(right)}
    assert {id(tensor) for tensor in loose_tensors(model).values()} == {id(first), id(second)}


def test_two_variables_of_one_name_are_both_found():
    def make(weight):
        return lambda x: x * weight

    first, second = make(torch.ones(3)), make(torch.zeros(3))

    def function(x):
        return first(x) + second(x)

    assert len(loose_tensors(function)) == 2


def test_functions_that_call_each_other_end():
    def even(x):
        return odd(x)

    def odd(x):
        return even(x)

    assert owned_modules(even) == {}


def test_a_variable_that_is_not_bound_yet_is_skipped():
    def function(x):
        return later(x)

    assert owned_modules(function) == {}
    later = Plain()
    assert list(owned_modules(function).values()) == [later]
