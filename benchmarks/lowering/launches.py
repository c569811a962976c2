"""Reads from the text of a program that XLA compiled for a GPU which kernels it launches, and what they are for."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.lowering.hlo import array_bytes, computations

_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)$", re.MULTILINE)
_CALLEES = re.compile(
    r"(?:body|condition|to_apply|calls|true_computation|false_computation|branch_computations)=(\{[^}]*\}|%?[\w.-]+)"
)
_TRIPS = re.compile(r"known_trip_count\D*(\d+)")
_ROOT = r"^.*/(site-packages/|(?=(examples|benchmarks|jax_dcn)/))"
_NO_KERNEL = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"}
_SLICES = {"slice", "dynamic-slice", "gather"}  # of their first operand; the others are small
_SAME_ELEMENTS = {"bitcast", "convert"}
_SCRATCH = re.compile(r", s8\[\d+\]\{0\}(?=\)$)")  # the memory that a library computes in
_CALLS = {"while", "conditional", "call"}  # they launch what their computations do
_LIBRARIES = {"__cublas": "product", "__cudnn": "convolution", "dcn_": "jax_dcn"}
# A fusion is of the first kind whose operation it has.
_KINDS = {"reduce": "reduction", "concatenate": "concatenation", "scatter": "scatter", "sort": "sort"}
_KINDS |= {"copy": "copy", "transpose": "copy"}


class Launch(NamedTuple):
    """A kernel, or a call of a library or of this package, which may launch several.

    bytes: of results and of what is read of operands. source: the line of code that it is from. caller: the innermost
    line of examples/ that led there. times: how often it is launched; unknown trips of a loop count once.
    """

    name: str
    kind: str
    bytes: int
    source: str
    caller: str
    times: int


def launches(text: str) -> list[Launch]:
    """The launches of a compiled program, in the order of its text: those of all branches of a conditional count."""
    head, bodies = computations(text)
    return list(_of_computation([*bodies][-1], 1, bodies, _Sources(head)))


def _of_computation(computation, times, bodies, sources) -> Iterator[Launch]:
    types = {}
    for instruction in _INSTRUCTION.finditer(bodies[computation]):
        name, result, operation, operands, attributes = instruction.groups()
        types[name] = result
        if operation in _CALLS:
            trips = _TRIPS.search(attributes)
            for callee in re.findall(r"[\w.-]+", " ".join(_CALLEES.findall(attributes))):
                yield from _of_computation(callee, times * int(trips[1] if trips else 1), bodies, sources)
        elif operation not in _NO_KERNEL:
            fused = bodies[_CALLEES.search(attributes)[1].lstrip("%")] if operation == "fusion" else f" {operation}("
            kind = _kind(operation, attributes, fused)
            written = array_bytes(_SCRATCH.sub("", result) if kind in _LIBRARIES.values() else result)
            read_types = [types.get(operand, "") for operand in re.findall(r"%([\w.-]+)", operands)]
            if operation in _SLICES:
                read_types[0] = result
            read = (array_bytes(operand) * _share_read(fused, index) for index, operand in enumerate(read_types))
            yield Launch(name, kind, written + round(sum(read)), *sources.of(attributes), times)


def _kind(operation, attributes, fused):
    if operation == "custom-call":
        target = re.search(r'custom_call_target="([^"]+)"', attributes)[1]
        return next((kind for start, kind in _LIBRARIES.items() if target.startswith(start)), target)
    return next((kind for found, kind in _KINDS.items() if f" {found}(" in fused), "element-wise")


def _share_read(fused, index):
    """How much a fusion reads of an operand: all of it, or the slices that it takes."""
    found = re.search(rf"%([\w.-]+) = (\S+) parameter\({index}\)", fused)
    return _share(fused, *found.groups()) if found else 1


def _share(fused, array, its_type):
    operand, share = re.compile(rf"%{re.escape(array)}(?![\w.-])"), 0
    uses = [use for use in _INSTRUCTION.finditer(fused) if operand.search(use[4])]
    for name, result, operation, *_ in (use.groups() for use in uses):
        if operation in _SLICES:
            share += array_bytes(result) / max(array_bytes(its_type), 1)
        elif operation in _SAME_ELEMENTS:
            share += _share(fused, name, result)
        else:
            return 1
    return min(share, 1)


class _Sources:
    """The tables of files and stack frames at the head of a program."""

    def __init__(self, head):
        self.files, self.locations, self.frames = (
            self._table(head, title) for title in ("FileNames", "FileLocations", "StackFrames")
        )

    @staticmethod
    def _table(head, title):
        found = re.search(rf"^{title}\n((?:\d+ .*\n)+)", head, re.MULTILINE)
        return dict(line.split(" ", 1) for line in found[1].splitlines()) if found else {}

    def of(self, attributes):
        """The innermost line of an instruction, and the innermost one of examples/."""
        frame, found = re.search(r"stack_frame_id=(\d+)", attributes), []
        number = frame and frame[1]
        while number in self.frames:
            fields = dict(re.findall(r"(\w+)=(\d+)", self.frames[number]))
            place = dict(re.findall(r"(\w+)=(\d+)", self.locations[fields["file_location_id"]]))
            file = self.files[place["file_name_id"]].strip('"')
            found.append(f"{re.sub(_ROOT, '', file)}:{place['line']}")
            number = str(int(fields["parent_frame_id"]) - 1)  # the first frame has the parent 0
        return next(iter(found), "-"), next((place for place in found if place.startswith("examples/")), "-")
