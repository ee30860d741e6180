"""Micro-kernels at the two ends of the native route: queries in, answers out, in the caller's dtype.

Inside, values are float32 in the lane order of the stored kind: where K and V are bf16 (and then the queries are too),
the 16 even values of each 32 come before the 16 odd ones. fp8 is read by queries of every dtype.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvlab.attention.simd import ELEMENTS, F32, HALF, I16, I64, KINDS, LANES, PAIR, VF, VI, Block, Loop, define, pointer

HALVES: Final = {"bf16": ir.VectorType(I16, LANES), "fp16": ir.VectorType(HALF, LANES)}


def _take_in(module: ir.Module, kind: str, stored: str) -> Any:
    """(given, count, q) -> NaN where one of the `count` values is NaN or infinite, else 0: values of `kind` as float32
    in the lane order of `stored`."""
    floats = F32.as_pointer()
    function, block = define(module, f"kvlab.take_in.{kind}.{stored}", [ELEMENTS[kind].as_pointer(), I64, floats], F32)
    if block is None:
        return function
    given, count, q = function.args
    b = block.ir
    zero = block.every(VF, 0.0)
    loop = Loop(block, I64(0), count, PAIR, [zero])
    found = loop.carried[0]
    place = block.at(given, loop.i)
    if kind == "bf16" != stored:
        words = [block.load(block.at(place, at), HALVES[kind], 2) for at in (0, LANES)]
        pair = [b.bitcast(b.shl(b.zext(each, VI), block.every(VI, 16)), VF) for each in words]
    else:
        pair = list(block.stored_pair(place, kind))
    for at, value in zip((0, LANES), pair, strict=True):
        block.store(value, block.at(q, b.add(loop.i, I64(at))))
        found = block.fma(value, zero, found)  # 0 times NaN or infinity is NaN
    loop.close(found)
    b.ret(block.fold(loop.carried[0], b.fadd))
    return function


def _give_out(module: ir.Module, kind: str, stored: str) -> Any:
    """(sums, total, out, count): out = sums / total as `kind`, out of the lane order of `stored`."""
    arguments = [F32.as_pointer(), F32, ELEMENTS[kind].as_pointer(), I64]
    function, block = define(module, f"kvlab.give_out.{kind}.{stored}", arguments)
    if block is None:
        return function
    sums, total, out, count = function.args
    b = block.ir
    divisor = block.splat(total)
    loop = Loop(block, I64(0), count, PAIR)
    places = [b.add(loop.i, I64(at)) for at in (0, LANES)]
    pair = [b.fdiv(block.load(block.at(sums, place)), divisor) for place in places]
    if stored == "bf16":
        even, odd = (_rounded(block, each) for each in pair)
        words = b.or_(b.lshr(even, block.every(VI, 16)), b.and_(odd, block.every(VI, -65536)))
        _store(block, words, block.at(out, loop.i), 2)
    else:
        for place, value in zip(places, pair, strict=True):
            _store(block, _narrowed(block, value, kind), block.at(out, place), 4 if kind == "fp32" else 2)
    loop.close()
    b.ret_void()
    return function


def _rounded(block: Block, value: Any) -> Any:
    """float32 bits whose upper half is the nearest bf16, ties to even; NaN stays NaN."""
    b = block.ir
    bits = b.bitcast(value, VI)
    last = b.and_(b.lshr(bits, block.every(VI, 16)), block.every(VI, 1))
    up = b.add(bits, b.add(last, block.every(VI, 0x7FFF)))
    return b.select(b.fcmp_unordered("uno", value, value), block.every(VI, 0x7FC00000), up)


def _narrowed(block: Block, value: Any, kind: str) -> Any:
    b = block.ir
    if kind == "fp16":
        return b.fptrunc(value, HALVES[kind])
    return b.trunc(b.lshr(_rounded(block, value), block.every(VI, 16)), HALVES[kind]) if kind == "bf16" else value


def _store(block: Block, value: Any, place: Any, align: int) -> None:
    block.ir.store(value, block.ir.bitcast(place, value.type.as_pointer())).align = align


@intrinsic
def take_in(_: Any, given: Any, given_like: Any, stored: Any, count: Any, q: Any) -> Any:
    """See `_take_in`; `given` is an address, `given_like` and `stored` are numbers of the two types."""
    kind = KINDS[given_like]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = _take_in(builder.module, kind, KINDS[stored])
        begin = pointer(context, builder, given, args[0], I64(0), ELEMENTS[kind])
        return builder.call(function, [begin, args[3], pointer(context, builder, q, args[4], I64(0), F32)])

    return types.float32(given, given_like, stored, types.int64, q), generate


@intrinsic
def give_out(_: Any, sums: Any, sums0: Any, total: Any, out: Any, out0: Any, out_like: Any, stored: Any,
             count: Any) -> Any:  # fmt: skip
    """See `_give_out`; `out` is an address, `out_like` and `stored` are numbers of the two types."""
    kind = KINDS[out_like]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = _give_out(builder.module, kind, KINDS[stored])
        begin = pointer(context, builder, sums, args[0], args[1], F32)
        target = pointer(context, builder, out, args[3], args[4], ELEMENTS[kind])
        builder.call(function, [begin, args[2], target, args[7]])
        return context.get_dummy_value()

    i = types.int64
    return types.void(sums, i, types.float32, out, i, out_like, stored, i), generate
