"""`kvlab bench`: what is measured on this machine."""

from typing import Annotated

import typer

from kvlab.cli_parts import Json, print_json, progress

bench = typer.Typer(help="Measure the parts on this machine.", no_args_is_help=True)


@bench.command("pool")
def bench_pool(
    repeats: Annotated[int, typer.Option(min=5, help="How often each operation is measured.")] = 101,
    as_json: Json = False,
) -> None:
    """Time the paged memory manager: append, admit, fork, free, a policy step, a simulated token.

    Example: kvlab bench pool --json
    """
    from kvlab.bench import pool

    def told(done: int, of: int) -> None:
        if done % 20 == 0 or done == of:
            progress(f"{done} of {of} rounds")

    rows = list(pool.bench(repeats, told))
    if as_json:
        print_json(pool.as_json(rows))
    else:
        for row in rows:
            case = ", ".join(f"{name} {value:,}" for name, value in row.case.items())
            typer.echo(f"{row.name:17}{row.median_s * 1e6:9.2f} us  +- {row.iqr_s * 1e6:6.2f}  {case}")


@bench.command("attention")
def bench_attention(
    batch: Annotated[list[int] | None, typer.Option(help="Only this batch (may be repeated). Else 8, 24, 56.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only bf16 or fp32. Else both.")] = None,
    prompt: Annotated[bool, typer.Option("--prompt", help="A prompt of 2,048 tokens instead of decode steps.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest cases, 5 repeats.")] = False,
    repeats: Annotated[int, typer.Option(min=5, help="How often each route is timed.")] = 15,
    as_json: Json = False,
) -> None:
    """Time attention over scattered blocks and over contiguous KV, one route beside the other.

    What is timed is one layer's call inside a step. Checks and plans that the layers share are shown beside it, as the
    time that the first layer's call takes on top.

    Context 1,024, 8 KV heads of 128. Takes minutes and 4 GB of memory; --quick, seconds.

    Example: kvlab bench attention --quick
    """
    from kvlab.bench import attention

    points, repeats = attention.cases(batch, dtype, quick=quick, prompt=prompt), 5 if quick else repeats
    found = attention.as_json(list(attention.bench(points, repeats, progress)), repeats)
    if "native" not in {row["name"] for row in found["rows"]}:
        progress("native is left out: it needs Numba (pip install 'kvlab[native]')")
    if as_json:
        print_json(found)
    else:
        typer.echo(attention.text(found))


@bench.command("engine")
def bench_engine(
    model: Annotated[str, typer.Option(help="embedded, smollm2, a Hugging Face folder or a GGUF file.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    mixed: Annotated[bool, typer.Option(help="With the mixed lengths, which take long with a long context.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest case, 5 repeats.")] = False,
    repeats: Annotated[int, typer.Option(min=5, help="How often each arm is timed.")] = 5,
    as_json: Json = False,
) -> None:
    """Time the engine beside `generate` of transformers: the same weights, the same requests, greedy.

    Batches of 8 and 32 with 128 tokens in and out, and 32 requests of mixed (ShareGPT) lengths. Takes minutes.

    Example: kvlab bench engine --quick
    """
    from kvlab.bench import engine

    points, repeats = engine.cases(model, dtype, mixed=mixed, quick=quick), 5 if quick else repeats
    found = engine.as_json(list(engine.bench(points, repeats, progress)), repeats)
    if as_json:
        print_json(found)
    else:
        typer.echo(engine.text(found))


@bench.command("radix")
def bench_radix(
    repeats: Annotated[int, typer.Option(min=5, help="How often each operation is measured.")] = 9,
    as_json: Json = False,
) -> None:
    """Time the radix tree: insert, match, lock and unlock, evict; and count the bytes of its books.

    1,000 sequences of 2,000 tokens in pages of 1, 16 and 64, with nothing or 1,024 tokens in common.

    Example: kvlab bench radix --json
    """
    from kvlab.bench import radix

    rows, sizes = list(radix.bench(repeats, progress)), list(radix.memory())
    if as_json:
        print_json(radix.as_json(rows, sizes, repeats))
    else:
        typer.echo(radix.text(rows, sizes))
