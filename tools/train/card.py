"""The model card, written from what the run recorded; no number in it is typed by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

WIDTH = 100


def card(facts: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """README.md of the model's folder, from training.json's `facts` and the configuration."""
    run, held_out, machine, model = facts["run"], facts["held_out"], facts["machine"], facts["model"]
    overall = held_out["by_source"]["all"]
    settings = facts["settings"]
    sections = [
        "# The embedded model\n\n"
        + fill(
            "A small decoder that ships inside kvlab so that the course and the tests need no download. It writes the "
            "English of its training text: grammatical in short stretches, without knowledge and without plan. "
            "`kvlab.engine.embedded.load_model()` reads it, and so does transformers."
        ),
        "This file and training.json are written by `tools/train_embedded.py export` from the run's own log.\n\n"
        + table(
            [
                (
                    "held-out loss",
                    f"{overall['nats_per_token']:.3f} nats a token, {overall['bits_per_byte']:.3f} bits a byte",
                ),
                ("training loss at the end", f"{run['train_nats_per_token']:.3f} nats a token"),
                ("parameters", f"{model['parameters']:,} (embedding and head are one matrix)"),
                ("weights", f"{model['safetensors_bytes']:,} bytes, bf16; {facts['weights']} of the run"),
                ("licence of the weights", "Apache-2.0, as kvlab"),
                ("seed", f"{settings['seed']}"),
                (
                    "time",
                    f"{run['minutes']:.0f} minutes, {settings['workers']} processes of one thread, at low priority",
                ),
                ("machine", f"{machine['processor']}, {machine['cores']} cores, no accelerator"),
                ("software", f"Python {machine['python']}, torch {machine['torch']}"),
                ("steps", f"{run['steps']:,}, which is {run['share_of_schedule']:.1%} of the schedule"),
                (
                    "tokens seen",
                    f"{run['tokens']:,}, {run['tokens'] / facts['train']['tokens']:.1f} times the training text",
                ),
            ],
            ("", ""),
        ),
        "## Data\n\n" + data(facts),
        "## Architecture\n\n" + architecture(config),
        "## Held-out loss\n\n"
        + fill(
            f"{len(held_out['documents'])} chapters were drawn with the seed and never trained on: "
            + ", ".join(held_out["documents"])
            + ". Each was cut into pieces of at most "
            f"{config['max_position_embeddings']:,} tokens; bits count the end-of-text token, bytes don't. "
            "Some chapters of the Bible tell again what others tell, so the loss on it is a little flattering."
        )
        + "\n\n"
        + table(
            [
                (
                    source,
                    f"{row['nats_per_token']:.3f}",
                    f"{row['bits_per_byte']:.3f}",
                    f"{row['tokens']:,}",
                    f"{row['bytes']:,}",
                )
                for source, row in held_out["by_source"].items()
            ],
            ("source", "nats a token", "bits a byte", "tokens", "bytes"),
        )
        + ("\n\n" + context(held_out["context"]) if "context" in held_out else ""),
        f"## Samples\n\nTemperature {facts['sampling']['temperature']}, seeds {facts['sampling']['seed']} "
        f"to {facts['sampling']['seed'] + len(facts['samples']) - 1}, none left out. "
        "The prompt is in bold.\n\n" + "\n\n".join(quoted(each) for each in facts["samples"]),
        "## Limits\n\n"
        + fill(
            "It knows nothing: what it says of people, places and faith is made up of phrases of 1611 and of 1811 to "
            "1818, with the views of their time. It follows no instructions and speaks no other language. Past "
            f"{config['max_position_embeddings']:,} tokens it was never trained. Use it to see a serving system work, "
            "for nothing else."
        ),
        "## Train it again\n\n"
        + fill(
            "On Debian, with the packages bible-kjv and bible-kjv-text installed and kvlab with its extras `engine`:"
        )
        + f"\n\n```\napt-get download r-cran-janeaustenr\n{facts['command']}\n```\n\n"
        + fill(
            "The learning rate follows the clock, so another machine, or the same one under another load, takes "
            "another number of steps and comes to other weights; the corpus, the split and the order of the data stay. "
            "`--text FILE` adds any text; training.json holds the settings and the curve."
        ),
    ]
    return "\n\n".join(sections) + "\n"


def data(facts: Mapping[str, Any]) -> str:
    """What was read, from where, and that it is free."""
    rows = [
        (each["name"], each["origin"], f"{each['documents']:,}", f"{each['bytes']:,}", f"`{each['sha256']}`")
        for each in facts["sources"]
    ]
    states = dict.fromkeys(f"{each['origin']}: {each['status']}" for each in facts["sources"])
    return (
        table(rows, ("text", "from", "chapters", "bytes", "sha256 of the text as used"))
        + "\n\n"
        + "\n".join(f"- {state}." for state in states)
        + "\n\n"
        + fill(
            "A chapter is a document, `<bos>` text `<eos>`; verse numbers and headings are left out, one line is one "
            "verse or paragraph. Of r-cran-janeaustenr's novels, Northanger Abbey is not used: its file follows the "
            "spelling of a modern edition. "
            f"Training text: {facts['train']['documents']:,} chapters, {facts['train']['bytes']:,} bytes, "
            f"{facts['train']['tokens']:,} tokens."
        )
    )


def context(found: Mapping[str, float]) -> str:
    """What a long context is worth, in a sentence."""
    targets, *losses = found.items()
    said = " and ".join(f"{loss:.3f} nats with {bound.replace('_', ' ')}" for bound, loss in losses)
    return fill(f"The same {targets[1]:,} tokens, late in long chapters, cost {said} tokens of context before them.")


def architecture(config: Mapping[str, Any]) -> str:
    """The configuration in words, as `gemma3_text` has it."""
    kinds = ["global" if kind == "full_attention" else "sliding" for kind in config["layer_types"]]
    return fill(
        f"transformers' `{config['model_type']}`: {len(kinds)} layers ({', '.join(kinds)}), a window of "
        f"{config['sliding_window']} tokens in the sliding ones; width {config['hidden_size']}, "
        f"{config['num_attention_heads']} query and {config['num_key_value_heads']} KV heads of {config['head_dim']}; "
        f"gated MLP of {config['intermediate_size']} (GELU, tanh form); four RMS norms a layer, and one on each query "
        f"and key head; rotary base {config['rope_local_base_freq']:,.0f} in sliding layers, "
        f"{config['rope_theta']:,.0f} in global ones; "
        f"{config['max_position_embeddings']:,} positions; byte-level BPE of {config['vocab_size']:,} tokens, "
        "trained on the training text."
    )


def fill(text: str) -> str:
    """Wrapped to the width of the file."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def quoted(sample: Mapping[str, str]) -> str:
    """A sample as a block quote, each line its own."""
    text = (f"**{sample['prompt']}**" if sample["prompt"] else "") + sample["text"]
    return "\n".join(f"> {line}  ".rstrip() if not line else f"> {line}  " for line in text.splitlines())
