"""Reads machine code (SASS) as the basic blocks of each kernel, with the PTX instruction that each comes from.

`nvdisasm -gp -hex` prints code that was compiled with -lineinfo, before instructions the line of the PTX, and after
them their encoding, which says how long the next instruction waits. Bits 41 to 57 of its second word are: the clocks
until the next instruction may be issued; a hint; the scoreboard that the result releases and the one that is released
when the operands are read (7: none); and a mask of the scoreboards that the instruction waits for. Source: Jia and
others, "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826, section 2.1.
"""

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

FUNCTION = re.compile(r"\.text\.(\S+):")
PTX_LINE = re.compile(r'\s*//## File "[^"]*", line (\d+)')
LABEL = re.compile(r"(\.L_x_\d+|\$\S+):")
SCOREBOARDS, NO_SCOREBOARD = 6, 7
SECOND_WORD = re.compile(r"\s+/\* (0x[0-9a-f]{16}) \*/$")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
TARGET = re.compile(r"`\((\S+?)\)")
ENDS_BLOCK = re.compile(r"BRA|BRX|JMP|EXIT|RET|CALL|WARPSYNC\.COLLECTIVE")


class Instruction(NamedTuple):
    opcode: str
    operands: str
    is_predicated: bool
    ptx_line: int | None
    stall: int = 1  # clocks
    result_scoreboard: int = NO_SCOREBOARD
    operands_scoreboard: int = NO_SCOREBOARD
    awaited: tuple[int, ...] = ()  # scoreboards


class Block(NamedTuple):
    instructions: tuple[Instruction, ...]
    successors: tuple[int, ...]  # indices of blocks
    callee: int | None  # the first block of the subroutine that the block's last instruction calls


def functions(disassembly):
    """The blocks of each function, by its mangled name."""
    found, items, line = {}, None, None
    for text in disassembly.splitlines():
        if match := FUNCTION.match(text):
            items, line = found.setdefault(match[1], []), None
        elif items is None:
            continue
        elif match := PTX_LINE.match(text):
            line = int(match[1])
        elif match := LABEL.match(text):
            items.append(match[1])
        elif match := INSTRUCTION.match(text):
            guard, opcode, operands = match.groups()
            items.append(Instruction(opcode, operands, guard is not None and guard.strip() != "@PT", line))
        elif match := SECOND_WORD.match(text):
            items[-1] = items[-1]._replace(**_control(int(match[1], 16) >> 41))
    return {name: _blocks(items) for name, items in found.items()}


def _control(bits):
    return {
        "stall": max(bits & 15, 1),
        "result_scoreboard": bits >> 5 & 7,
        "operands_scoreboard": bits >> 8 & 7,
        "awaited": tuple(k for k in range(SCOREBOARDS) if bits >> 11 + k & 1),
    }


def _blocks(items):
    code, labels, is_open = [], {}, False
    for item in items:
        if not is_open or (isinstance(item, str) and code[-1]):
            code.append([])
            is_open = True
        if isinstance(item, str):
            labels[item] = len(code) - 1
        else:
            code[-1].append(item)
            is_open = not ENDS_BLOCK.match(item.opcode)
    code = [block for block in code if block]  # a label after the last instruction names no block
    return [Block(tuple(block), *_edges(index, block[-1], labels, len(code))) for index, block in enumerate(code)]


def _edges(index, last, labels, count):
    names = [name for name in TARGET.findall(last.operands) if name in labels]
    targets = [labels[name] for name in names]
    following = [index + 1] if index + 1 < count else []
    # ptxas for sm_80 leaves loops by calls that never return. Subroutines have names, places in a loop have numbers.
    if last.opcode.startswith("CALL") and names[0].startswith("$"):
        return tuple(following), targets[0]
    if last.opcode.startswith("RET"):
        return (), None
    if last.opcode.startswith("EXIT"):
        return tuple(following if last.is_predicated else []), None
    # The target of a BRA.DIV is for warps that have not converged.
    if not ENDS_BLOCK.match(last.opcode) or last.opcode == "BRA.DIV":
        return tuple(following), None
    # A branch has its condition as guard or as first operand.
    is_conditional = last.is_predicated or re.match(r"!?U?P\d", last.operands)
    return tuple(dict.fromkeys([*targets, *(following if is_conditional else [])])), None


def loops(blocks, inside):
    """The sets of blocks of the loops that contain all blocks of `inside`, from the outermost to the innermost."""
    reached = region = _reached(blocks)
    while True:
        component = next((c for c in _components(blocks, region) if inside <= c), None)
        if component is None:
            return
        yield component
        # All cycles of this level pass through the entry. Without it, only those of inner loops remain.
        entries = {n for k in reached - component for n in blocks[k].successors if n in component}
        region = component - (entries or {min(component)})


def _reached(blocks):
    """The blocks that branches lead to: not those that only warps that have not converged run."""
    reached, found = {0}, [0]
    while found:
        following = set(blocks[found.pop()].successors) - reached
        reached |= following
        found += following
    return reached


def _components(blocks, region):
    """The strongly connected components of the graph of the blocks in `region`, as far as they have edges."""
    edges = [(k, n) for k in region for n in blocks[k].successors if n in region]
    if not edges:
        return []
    graph = coo_array((np.ones(len(edges)), tuple(zip(*edges, strict=True))), shape=(len(blocks), len(blocks)))
    _, labels = connected_components(graph, connection="strong")
    components = defaultdict(set)
    for k, n in edges:
        if labels[k] == labels[n]:
            components[labels[k]] |= {k, n}
    return list(components.values())
