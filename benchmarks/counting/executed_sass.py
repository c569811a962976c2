"""How often each basic block of machine code runs, from how often the PTX instructions run that it comes from.

Machine code is not executed here, PTX is. ptxas moves, copies and replaces instructions, so an instruction's own PTX
line does not always say how often its block runs. Three facts together do:

- Some PTX instructions (products, loads, stores, barriers, shuffles) become one instruction each. If ptxas copied them,
  the copies together run as often as the PTX instruction.
- What enters a block also leaves it. Only where a warp diverges, more leaves than enters, and where it converges, less.
- Most of the other instructions run as often as those of their PTX line.

A linear program looks for the number of executions of each block and edge that deviates least from these. The sum of
absolute deviations, unlike that of squares, lets a few moved instructions be wrong without an effect on the others.
"""

import re
from collections import Counter, defaultdict

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

# PTX instructions that become one instruction each, and the machine code of those.
ANCHORS = {
    "mma.": r"[HIQ]G?MMA\.",
    "ldmatrix.": r"LDSM",
    "ld.global": r"LDG\.",
    "st.global": r"STG\.",
    "ld.shared": r"LDS(\.|$)",
    "st.shared": r"STS(\.|$)",
    "cp.async.c": r"LDGSTS\.",
    "atom.": r"ATOM|RED",
    "bar.": r"BAR\.",
    "shfl.": r"SHFL\.",
    "vote.": r"VOTE",
}
# What a deviation costs, relative to one of an anchor: of other instructions, of an anchor that ptxas made conditional
# where the PTX branches (it is issued more often than the PTX instruction), and of divergence.
OTHER, CONDITIONAL, DIVERGENCE = 0.1, 0.1, 0.02


def block_executions(blocks, ptx, warps):
    """The executions of each block by warps, of `warps` that started.

    `ptx` has the opcode and the executions of the instructions at each line of the PTX.
    """
    program = _Program(len(blocks), warps)
    _conserve_flow(program, blocks)
    _follow_ptx(program, blocks, ptx)
    return program.solve()


def is_anchor(ptx_opcode, opcode):
    return any(ptx_opcode.startswith(start) and re.match(code, opcode) for start, code in ANCHORS.items())


class _Program:
    """Variables are not negative. They are in units of the warps that started."""

    def __init__(self, blocks, warps):
        self.blocks, self.warps = blocks, warps
        self.costs = [0.0] * blocks
        self.rows, self.upper, self.is_equation = [], [], []

    def variable(self, cost=0.0):
        self.costs.append(cost)
        return len(self.costs) - 1

    def equal(self, terms, value=0.0):
        """The sum of variables times factors is `value`; at_most: is no more than 0."""
        self._row(terms, value, True)

    def at_most(self, terms):
        self._row(terms, 0.0, False)

    def near(self, terms, value, over, under):
        """A sum above or below `value` costs as much per unit."""
        self.equal({**terms, self.variable(over): -1, self.variable(under): 1}, value)

    def _row(self, terms, value, is_equation):
        self.rows.append(terms)
        self.upper.append(value)
        self.is_equation.append(is_equation)

    def solve(self):
        entries = [(k, variable, factor) for k, terms in enumerate(self.rows) for variable, factor in terms.items()]
        rows, columns, factors = zip(*entries, strict=True)
        matrix = coo_array((factors, (rows, columns)), shape=(len(self.rows), len(self.costs))).tocsr()
        upper, equation = np.array(self.upper), np.array(self.is_equation)
        result = linprog(
            self.costs,
            A_ub=matrix[~equation] if not equation.all() else None,
            b_ub=upper[~equation] if not equation.all() else None,
            A_eq=matrix[equation],
            b_eq=upper[equation],
            method="highs",
        )
        if not result.success:
            raise RuntimeError(f"no executions of the blocks fit: {result.message}")
        return (result.x[: self.blocks] * self.warps).tolist()


def _conserve_flow(program, blocks):
    leaving, entering, callers = defaultdict(list), defaultdict(list), defaultdict(list)
    for k, block in enumerate(blocks):
        for successor in block.successors:
            edge = program.variable()
            leaving[k].append(edge)
            entering[successor].append(edge)
        if block.callee is not None:
            callers[block.callee].append(k)
    for k, block in enumerate(blocks):
        is_exit = block.instructions[-1].opcode.startswith(("EXIT", "RET"))
        if leaving[k] and is_exit:
            program.at_most({edge: 1 for edge in leaving[k]} | {k: -1})
        elif leaving[k]:
            _balance(program, k, leaving[k])
        if k == 0:
            program.equal({k: 1}, 1)
        elif k in callers:
            program.equal({caller: 1 for caller in callers[k]} | {k: -1})
        else:
            _balance(program, k, entering[k])


def _balance(program, block, edges):
    """The block runs as often as the edges together; less often where a warp diverges or converges there."""
    terms = {edge: 1 for edge in edges} | {block: -1}
    if len(edges) > 1:
        terms[program.variable(DIVERGENCE)] = -1
        for edge in edges:
            program.at_most({edge: 1, block: -1})
    program.equal(terms)


def _follow_ptx(program, blocks, ptx):
    at_line = defaultdict(list)
    for k, block in enumerate(blocks):
        for instruction in block.instructions:
            if instruction.ptx_line in ptx:
                at_line[instruction.ptx_line].append((k, instruction))
    others = Counter()
    for line, copies in at_line.items():
        opcode, executions = ptx[line]
        executions /= program.warps
        if anchors := [(k, one) for k, one in copies if is_anchor(opcode, one.opcode)]:
            over = CONDITIONAL if any(one.is_predicated for _, one in anchors) else 1
            program.near(dict(Counter(k for k, _ in anchors)), executions, over, 1)
        elif len({k for k, _ in copies}) == 1:
            others[copies[0][0], executions] += len(copies)
    for (block, executions), count in others.items():
        program.near({block: 1}, executions, OTHER * count, OTHER * count)
