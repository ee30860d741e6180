"""Micro-kernels of the native route in LLVM vectors: scores, softmax and values of one tile of keys.

Numba's vectoriser reorders none of the sums that decode attention is made of; these are written for it: 16 lanes,
16 accumulators in registers, one transposing reduction for 16 dot products. LLVM splits the vectors where a CPU's are
narrower, so nothing here depends on an instruction set.

Stored values come as pairs of 16 lanes for each 32 values. bf16 is read as bits: in a 32-bit word the odd value is the
upper half and the even one the lower, so a mask and a shift make two float vectors; queries and sums are kept in that
order (`simd_ends` brings them there and back). A group is up to 4 query heads that share one load of K and V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES: Final = 16
PAIR: Final = 2 * LANES
F32, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
HALF, VOID = ir.HalfType(), ir.VoidType()
VF, VI = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
ELEMENTS: Final = {"bf16": I16, "fp16": HALF, "fp32": F32, "fp8": I8}
KINDS: Final = {types.uint16: "bf16", types.int16: "fp16", types.float32: "fp32", types.uint8: "fp8"}
"""How each kind of stored value is passed: bf16 and fp8 as unsigned bits, fp16 as signed bits."""
KEYS_AT_ONCE: Final = 4
EXP2: Final = [math.log(2) ** k / math.factorial(k) for k in range(8)]
LOWEST_EXPONENT: Final = -126.0


class Block:
    """An `IRBuilder` with the vector operations that these kernels need."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir = builder

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.ir.gep(pointer, [offset if isinstance(offset, ir.Value) else I64(offset)])

    def load(self, pointer: Any, ty: Any = VF, align: int = 4) -> Any:
        value = self.ir.load(self.ir.bitcast(pointer, ty.as_pointer()))
        value.align = align
        return value

    def store(self, value: Any, pointer: Any) -> None:
        self.ir.store(value, self.ir.bitcast(pointer, value.type.as_pointer())).align = 4

    def every(self, ty: Any, value: float) -> Any:
        return ir.Constant(ty, [value] * ty.count)

    def shuffle(self, x: Any, y: Any, lanes: Sequence[int]) -> Any:
        return self.ir.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def splat(self, value: Any) -> Any:
        undefined = ir.Constant(VF, ir.Undefined)
        return self.shuffle(self.ir.insert_element(undefined, value, I32(0)), undefined, [0] * LANES)

    def first(self, vector: Any) -> Any:
        return self.ir.extract_element(vector, I32(0))

    def larger(self, x: Any, y: Any) -> Any:
        return self.ir.select(self.ir.fcmp_ordered(">", x, y), x, y)

    def call(self, name: str, *operands: Any) -> Any:
        """A vector intrinsic that llvmlite cannot name itself."""
        known = self.ir.module.globals.get(name)
        function = known or ir.Function(self.ir.module, ir.FunctionType(VF, [VF] * len(operands)), name)
        return self.ir.call(function, operands)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return self.call(f"llvm.fma.v{LANES}f32", x, y, z)

    def fold(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Combine all lanes into one value."""
        for width in (8, 4, 2, 1):
            vector = combine(vector, self.shuffle(vector, vector, [(i + width) % LANES for i in range(LANES)]))
        return self.first(vector)

    def exp2(self, x: Any) -> Any:
        """2 ** x for x <= 0, to about 1e-7; below -126 it stays at 2 ** -126."""
        x = self.larger(x, self.every(VF, LOWEST_EXPONENT))
        whole = self.call(f"llvm.rint.v{LANES}f32", x)
        part = self.ir.fsub(x, whole)
        result = self.every(VF, EXP2[-1])
        for coefficient in reversed(EXP2[:-1]):
            result = self.fma(result, part, self.every(VF, coefficient))
        exponent = self.ir.shl(self.ir.fptosi(whole, VI), self.every(VI, 23))
        return self.ir.bitcast(self.ir.add(self.ir.bitcast(result, VI), exponent), VF)

    def stored_pair(self, pointer: Any, kind: str) -> tuple[Any, Any]:
        """32 stored values as two float vectors; for bf16, the even values and the odd ones."""
        b = self.ir
        if kind == "bf16":
            words = self.load(pointer, VI, 2)
            even, odd = b.shl(words, self.every(VI, 16)), b.and_(words, self.every(VI, -65536))
            return b.bitcast(even, VF), b.bitcast(odd, VF)
        halves = (pointer, self.at(pointer, LANES))
        if kind == "fp32":
            first, second = (self.load(half) for half in halves)
        elif kind == "fp16":
            first, second = (b.fpext(self.load(half, ir.VectorType(HALF, LANES), 2), VF) for half in halves)
        else:
            first, second = (self._fp8(self.load(half, ir.VectorType(I8, LANES), 1)) for half in halves)
        return first, second

    def _fp8(self, raw: Any) -> Any:
        """e4m3: exponent and mantissa moved into place, rescaled by 2 ** (127 - 7), subnormals included."""
        b = self.ir
        bits = b.zext(raw, VI)
        magnitude = b.bitcast(b.shl(b.and_(bits, self.every(VI, 0x7F)), self.every(VI, 20)), VF)
        scaled = b.bitcast(b.fmul(magnitude, self.every(VF, 2.0**120)), VI)
        sign = b.shl(b.and_(bits, self.every(VI, 0x80)), self.every(VI, 24))
        return b.bitcast(b.or_(scaled, sign), VF)

    def sums(self, vectors: list[Any]) -> Any:
        """16 vectors -> the vector whose lane i is the sum of vector i: each pass halves vectors and group size."""
        size = LANES
        while len(vectors) > 1:
            half, count = size // 2, len(vectors) // 2
            low = [base + part + i for base in range(0, LANES, size) for part in (0, LANES) for i in range(half)]
            high = [lane + half for lane in low]
            vectors = [
                self.ir.fadd(self.shuffle(x, y, low), self.shuffle(x, y, high))
                for x, y in zip(vectors[:count], vectors[count:], strict=True)
            ]
            size = half
        return vectors[0]


class Loop:
    """`for i in range(start, stop, step)` with values carried from turn to turn."""

    def __init__(self, block: Block, start: Any, stop: Any, step: int, carried: Sequence[Any] = ()) -> None:
        self.b = block.ir
        self.step = step
        function = self.b.function
        head, body, self.end = (function.append_basic_block() for _ in range(3))
        before = self.b.block
        self.b.branch(head)
        self.b.position_at_end(head)
        self.i = self.b.phi(I64)
        self.i.add_incoming(start, before)
        self.carried = []
        for value in carried:
            phi = self.b.phi(value.type)
            phi.add_incoming(value, before)
            self.carried.append(phi)
        self.b.cbranch(self.b.icmp_signed("<", self.i, stop), body, self.end)
        self.head = head
        self.b.position_at_end(body)

    def close(self, *carried: Any) -> None:
        """End the body; `carried` are the values for the next turn."""
        following = self.b.add(self.i, I64(self.step))
        for phi, value in zip([self.i, *self.carried], [following, *carried], strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(self.head)
        self.b.position_at_end(self.end)


def define(module: ir.Module, name: str, arguments: Sequence[Any], gives: Any = VOID) -> tuple[Any, Block | None]:
    """The function `name` of the module, and a block to write it in if it was not there yet."""
    if name in module.globals:
        return module.globals[name], None
    function = ir.Function(module, ir.FunctionType(gives, arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    # Numba tunes for 256-bit vectors; llvmlite refuses attributes that it does not know, hence set.add.
    set.add(function.attributes, f'"min-legal-vector-width"="{32 * LANES}"')
    set.add(function.attributes, f'"prefer-vector-width"="{32 * LANES}"')
    return function, Block(ir.IRBuilder(function.append_basic_block()))


def _scores(module: ir.Module, kind: str, group: int, head_dim: int) -> Any:
    """(q, k, keys, row_stride, scores, score_stride): scores[g * score_stride + i] = q[g] . k[i]."""
    floats = F32.as_pointer()
    arguments = [floats, ELEMENTS[kind].as_pointer(), I64, I64, floats, I64]
    function, block = define(module, f"kvlab.scores.{kind}.{group}.{head_dim}", arguments)
    if block is None:
        return function
    q, k, keys, row_stride, scores, score_stride = function.args
    b = block.ir

    def tile(first: Any, count: int) -> None:
        rows = [block.at(k, b.mul(b.add(first, I64(t)), row_stride)) for t in range(count)]
        sums = [[block.every(VF, 0.0)] * count for _ in range(group)]
        for at in range(0, head_dim, PAIR):
            wanted = [[block.load(block.at(q, g * head_dim + at + o)) for o in (0, LANES)] for g in range(group)]
            for t, row in enumerate(rows):
                x, y = block.stored_pair(block.at(row, at), kind)
                for g in range(group):
                    sums[g][t] = block.fma(wanted[g][1], y, block.fma(wanted[g][0], x, sums[g][t]))
        flat = [each for row in sums for each in row]
        reduced = block.sums(flat + [block.every(VF, 0.0)] * (LANES - len(flat)))
        for g in range(group):
            place = block.at(scores, b.add(b.mul(I64(g), score_stride), first))
            if count == 1:
                block.store(b.extract_element(reduced, I32(g)), place)
            else:
                block.store(block.shuffle(reduced, reduced, range(g * count, (g + 1) * count)), place)

    whole = b.and_(keys, I64(-KEYS_AT_ONCE))
    for start, stop, count in ((I64(0), whole, KEYS_AT_ONCE), (whole, keys, 1)):
        loop = Loop(block, start, stop, count)
        tile(loop.i, count)
        loop.close()
    b.ret_void()
    return function


def _softmax(module: ir.Module, group: int) -> Any:
    """(scores, padded, stride, scale, m, l, rescale): scores become weights 2 ** (scale * score - new maximum).

    `padded` is the number of keys rounded up to 16 (the padding holds -inf); the running maximum m, the running sum l
    and the factor that brings earlier sums to the new maximum are updated per query head.
    """
    floats = F32.as_pointer()
    function, block = define(module, f"kvlab.softmax.{group}", [floats, I64, I64, F32, floats, floats, floats])
    if block is None:
        return function
    scores, padded, stride, scale, maxima, totals, rescale = function.args
    b = block.ir
    factor = block.splat(scale)
    for g in range(group):
        row = block.at(scores, b.mul(I64(g), stride))
        old = b.load(block.at(maxima, g))
        loop = Loop(block, I64(0), padded, LANES, [block.every(VF, float("-inf"))])
        loop.close(block.larger(block.load(block.at(row, loop.i)), loop.carried[0]))
        new = block.larger(b.fmul(block.fold(loop.carried[0], block.larger), scale), old)
        top = block.splat(new)
        loop = Loop(block, I64(0), padded, LANES, [block.every(VF, 0.0)])
        place = block.at(row, loop.i)
        weight = block.exp2(b.fsub(b.fmul(block.load(place), factor), top))
        block.store(weight, place)
        loop.close(b.fadd(loop.carried[0], weight))
        total = block.fold(loop.carried[0], b.fadd)
        shrink = block.first(block.exp2(block.splat(b.fsub(old, new))))
        b.store(b.fadd(b.fmul(b.load(block.at(totals, g)), shrink), total), block.at(totals, g))
        b.store(new, block.at(maxima, g))
        b.store(shrink, block.at(rescale, g))
    b.ret_void()
    return function


def _values(module: ir.Module, kind: str, group: int, head_dim: int) -> Any:
    """(weights, stride, v, keys, row_stride, sums, rescale): sums[g] = sums[g] * rescale[g] + weights[g] . v."""
    floats = F32.as_pointer()
    arguments = [floats, I64, ELEMENTS[kind].as_pointer(), I64, I64, floats, floats]
    function, block = define(module, f"kvlab.values.{kind}.{group}.{head_dim}", arguments)
    if block is None:
        return function
    weights, stride, v, keys, row_stride, sums, rescale = function.args
    b = block.ir
    shrink = [block.splat(b.load(block.at(rescale, g))) for g in range(group)]
    width = max(w for w in (32, 64, 128) if w * group <= 256 and head_dim % w == 0)
    for start in range(0, head_dim, width):
        places = [block.at(sums, g * head_dim + start + o) for g in range(group) for o in range(0, width, LANES)]
        per_head = width // LANES
        begin = [b.fmul(block.load(place), shrink[i // per_head]) for i, place in enumerate(places)]
        loop = Loop(block, I64(0), keys, 1, begin)
        row = block.at(v, b.mul(loop.i, row_stride))
        factors = [block.splat(b.load(block.at(weights, b.add(b.mul(I64(g), stride), loop.i)))) for g in range(group)]
        result = list(loop.carried)
        for pair in range(width // PAIR):
            for half, value in enumerate(block.stored_pair(block.at(row, start + PAIR * pair), kind)):
                for g in range(group):
                    at = g * per_head + 2 * pair + half
                    result[at] = block.fma(factors[g], value, result[at])
        loop.close(*result)
        for place, value in zip(places, loop.carried, strict=True):
            block.store(value, place)
    b.ret_void()
    return function


def _prefetch(module: ir.Module) -> Any:
    """(pointer, bytes): ask for these cache lines."""
    function, block = define(module, "kvlab.prefetch", [I8.as_pointer(), I64])
    if block is None:
        return function
    name = "llvm.prefetch.p0i8"
    hint = block.ir.module.globals.get(name) or ir.Function(
        module, ir.FunctionType(VOID, [I8.as_pointer(), I32, I32, I32]), name
    )
    loop = Loop(block, I64(0), function.args[1], 64)
    block.ir.call(hint, [block.at(function.args[0], loop.i), I32(0), I32(3), I32(1)])
    loop.close()
    block.ir.ret_void()
    return function


def pointer(context: Any, builder: Any, array: Any, value: Any, offset: Any, element: Any) -> Any:
    """The place of an (array, offset) pair; in the array's stead there may be an address."""
    if isinstance(array, types.Integer):
        return builder.gep(builder.inttoptr(value, element.as_pointer()), [offset])
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [offset]), element.as_pointer())


# In Numba code an (array, offset) or (address, offset) pair stands for a pointer. `stored` is a number of the stored
# type; `group` and `pairs` are tuples whose lengths are the query heads of a group and head_dim / 32: types and lengths
# are part of the compiled signature.


@intrinsic
def scores(_: Any, q: Any, q0: Any, k: Any, k0: Any, stored: Any, keys: Any, row_stride: Any, s: Any, s0: Any,
           s_stride: Any, group: Any, pairs: Any) -> Any:  # fmt: skip
    """See `_scores`."""
    kind = KINDS[stored]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = _scores(builder.module, kind, len(group), PAIR * len(pairs))
        builder.call(function, [
            pointer(context, builder, q, args[0], args[1], F32),
            pointer(context, builder, k, args[2], args[3], ELEMENTS[kind]), args[5], args[6],
            pointer(context, builder, s, args[7], args[8], F32), args[9],
        ])  # fmt: skip
        return context.get_dummy_value()

    i = types.int64
    return types.void(q, i, k, i, stored, i, i, s, i, i, group, pairs), generate


@intrinsic
def softmax(_: Any, s: Any, s0: Any, padded: Any, s_stride: Any, scale: Any, state: Any, maxima: Any, totals: Any,
            rescale: Any, group: Any) -> Any:  # fmt: skip
    """See `_softmax`; `maxima`, `totals` and `rescale` are offsets into `state`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = _softmax(builder.module, len(group))
        places = [pointer(context, builder, state, args[5], args[at], F32) for at in (6, 7, 8)]
        scores_at = pointer(context, builder, s, args[0], args[1], F32)
        builder.call(function, [scores_at, args[2], args[3], args[4], *places])
        return context.get_dummy_value()

    i = types.int64
    return types.void(s, i, i, i, types.float32, state, i, i, i, group), generate


@intrinsic
def values(_: Any, w: Any, w0: Any, w_stride: Any, v: Any, v0: Any, stored: Any, keys: Any, row_stride: Any, sums: Any,
           sums0: Any, state: Any, rescale: Any, group: Any, pairs: Any) -> Any:  # fmt: skip
    """See `_values`; `rescale` is an offset into `state`."""
    kind = KINDS[stored]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = _values(builder.module, kind, len(group), PAIR * len(pairs))
        builder.call(function, [
            pointer(context, builder, w, args[0], args[1], F32), args[2],
            pointer(context, builder, v, args[3], args[4], ELEMENTS[kind]), args[6], args[7],
            pointer(context, builder, sums, args[8], args[9], F32),
            pointer(context, builder, state, args[10], args[11], F32),
        ])  # fmt: skip
        return context.get_dummy_value()

    i = types.int64
    return types.void(w, i, i, v, i, stored, i, i, sums, i, state, i, group, pairs), generate


@intrinsic
def prefetch(_: Any, address: Any, start: Any, stored: Any, count: Any) -> Any:
    """Ask for the stored values [start, start + count), without waiting."""
    item_bytes = stored.bitwidth // 8

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        begin = pointer(context, builder, address, args[0], builder.mul(args[1], I64(item_bytes)), I8)
        builder.call(_prefetch(builder.module), [begin, builder.mul(args[3], I64(item_bytes))])
        return context.get_dummy_value()

    return types.void(address, types.int64, stored, types.int64), generate
