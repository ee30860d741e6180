"""`kvlab doctor --gaudi`: its report on a stand-in Gaudi, healthy and broken, and what it says where there is none."""

import getpass
import json
import platform
from dataclasses import replace

import pytest
import torch
from device.conftest import OnTheCPU
from device.gaudi_standin import FusedSDPA, Gaudi
from support.tiny_model import tiny_config
from typer.testing import CliRunner

from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.store import KVStore
from kvlab.cli import app
from kvlab.device import bandwidth
from kvlab.device.hpu import HPU
from kvlab.doctor import Check
from kvlab.engine.static_runner import StaticRunner
from kvlab.engine.static_shapes import Rounding
from kvlab.gaudi_report import examine, trials
from kvlab.gaudi_report.cases import Geometry, decode_case
from kvlab.gaudi_report.examine import DTYPES, FULL, Findings, Sizes, examine_gaudi
from kvlab.gaudi_report.served_steps import Served, beside_the_cpu
from kvlab.gaudi_report.show import as_json, as_markdown, environment
from kvlab.gaudi_report.static_routes import static_routes
from kvlab.gaudi_report.trials import Verdict, against_reference, fallbacks, no_shape_is_new, store

pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated:DeprecationWarning")

TINY = Geometry(q_heads=4, kv_heads=2, head_dim=16, block_size=8)
SMALL = Sizes(
    small=TINY,
    lengths=(1, 8, 9, 30),
    window_tokens=13,
    day_requests=2,
    day_blocks=2,
    day_steps=6,
    layer=TINY,
    layer_requests=2,
    layer_tokens=16,
    served=Served(
        model=tiny_config().source,
        prompts=(18, 3, 10),
        output_tokens=8,
        pool_tokens=48,
        block_size=4,
        token_budget=8,
        rounding=Rounding(requests=4, chunk=8, context=48, moved=48),
    ),
)


@pytest.fixture(autouse=True)
def small_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is measured over 64 MB, times are taken twice."""
    monkeypatch.setattr(bandwidth, "BYTES", bandwidth.LEAST_BYTES)
    monkeypatch.setattr(trials, "REPEATS", 2)


@pytest.fixture
def lazy_gaudi(monkeypatch: pytest.MonkeyPatch) -> Gaudi:
    """A stand-in in lazy mode, where nothing has to be traced."""
    gaudi = Gaudi(lazy=True)
    gaudi.install(monkeypatch)
    return gaudi


def findings(sizes: Sizes = SMALL, seconds: float = 300.0) -> Findings:
    """What is found on the stand-in."""
    return examine_gaudi(OnTheCPU.open(), sizes, lambda name: None, seconds)


def test_a_healthy_gaudi_passes_everything(gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    dtypes = DTYPES if gaudi.lazy else {"bf16": DTYPES["bf16"]}  # tracing a graph takes its time
    monkeypatch.setattr(examine, "DTYPES", dtypes)
    found = examine_gaudi(OnTheCPU.open(), SMALL, told.append)
    assert [check.detail for check in found.checks if not check.ok] == []
    assert told == [check.name for check in found.checks], "each trial is announced"
    assert {timing.route for timing in found.timings} == {"gather", "gather, no fused operator", "flat_pa"}
    assert found.bandwidths["read"].bytes_per_s == 64e6 / 0.0025
    assert all(timing.useful_bytes == 2 * 16 * 2 * 2 * 16 * 2 for timing in found.timings)
    assert gaudi.lazy == (gaudi.compiled == 0)
    for name in ("gather", "gather, no fused operator", "flat_pa"):
        for dtype in dtypes:
            assert f"{name}, {dtype}, window 13" in told
    text = as_markdown(environment(OnTheCPU.open()), found)
    assert f"{len(told)} checks passed" in text
    assert platform.node() not in text
    assert getpass.getuser() not in text.replace("root", "")


def test_what_is_run_on_a_card_is_the_layer_of_the_article() -> None:
    blocks = FULL.layer_requests * -(-FULL.layer_tokens // FULL.layer.block_size)
    token = 2 * FULL.layer.kv_heads * FULL.layer.head_dim * 2
    assert (blocks, token, FULL.layer_requests * FULL.layer_tokens * token) == (448, 16_384, 939_524_096)


def test_wrong_answers_of_the_fused_operator_fail_its_route_only(
    lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusedSDPA, "apply", lambda q, *rest: torch.zeros_like(q))
    device, case = OnTheCPU.open(), decode_case((1, 9, 30), TINY, torch.float32)
    verdicts = {each.name: against_reference(device, each, case) for each in static_routes(device, 3, 4)}
    assert {name for name, (ok, _) in verdicts.items() if not ok} == {"gather"}
    assert "allowed" in verdicts["gather"][1]


def test_a_graph_that_answers_otherwise_is_found(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HPU, "compile", lambda self, function: lambda *operands: function(*operands) + 1)
    device, case = OnTheCPU.open(), decode_case((1, 9, 30), TINY, torch.float32)
    for each in static_routes(device, 3, 4):
        assert not against_reference(device, each, case)[0]


def test_a_call_that_answers_otherwise_is_found_though_its_graph_is_right(
    lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, case = OnTheCPU.open(), decode_case((1, 9, 30), TINY, torch.float32)
    monkeypatch.setattr(FlatPA, "__call__", lambda self, step, store: (torch.zeros_like(step.queries), None))
    assert not against_reference(device, static_routes(device, 3, 4)[2], case)[0]


def test_what_raises_is_a_line_of_the_report_and_the_rest_goes_on(
    lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Verdict:
        raise RuntimeError("synStatus=26 [Generic failure]\nand a long trace")

    three = [("first", fails), ("second", lambda: (False, "2 is not 3")), ("third", lambda: (True, "fine"))]
    monkeypatch.setattr(examine, "_trials", lambda *_: three)
    found = findings()
    assert [(check.word, check.detail) for check in found.checks] == [
        ("FAIL", "RuntimeError: synStatus=26 [Generic failure]"),
        ("FAIL", "2 is not 3"),
        ("ok", "fine"),
    ]
    assert [check.remedy is None for check in found.checks] == [False, False, True]
    assert "2 of 3 checks failed" in as_markdown({"card": "GAUDI3"}, found)


def test_a_write_that_goes_astray_is_found(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    case, write, calls = decode_case((1, 9, 30), TINY, torch.bfloat16), KVStore.write, []
    assert store(OnTheCPU.open(), case)[0]

    def astray(kv: KVStore, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        calls.append(slots)
        write(kv, keys, values + (len(calls) == 2), slots)

    monkeypatch.setattr(KVStore, "write", astray)
    ok, told = store(OnTheCPU.open(), case)
    assert not ok
    assert "differ from the CPU's" in told


def test_a_shape_that_was_not_warmed_up_is_found(eager_gaudi: Gaudi) -> None:
    device = OnTheCPU.open()
    each = static_routes(device, 2, 2)[2]
    ok, told = no_shape_is_new(device, replace(each, warmup=each.warmup[:1]), TINY, 4, 12)
    assert not ok
    assert "1 sets of shapes" in told
    assert no_shape_is_new(device, each, TINY, 4, 12)[0]


def test_the_engine_serves_as_on_the_cpu_and_its_memory_moves(lazy_gaudi: Gaudi) -> None:
    for served in (SMALL.served, FULL.served):
        ok, told = beside_the_cpu(OnTheCPU.open(), served, torch.float32)
        assert ok, told
        assert " 0 bytes" not in told
        assert " 0 swapped" not in told


def test_an_engine_that_answers_otherwise_is_found(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FusedSDPA, "apply", lambda q, *rest: torch.zeros_like(q))
    ok, told = beside_the_cpu(OnTheCPU.open(), SMALL.served, torch.float32)
    assert not ok
    assert "allowed" in told


def test_an_engine_that_compiles_while_it_serves_is_found(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    run = StaticRunner.run

    def compiles(self: StaticRunner, batch: object) -> torch.Tensor:
        lazy_gaudi.compiled += 1
        return run(self, batch)

    monkeypatch.setattr(StaticRunner, "run", compiles)
    assert not beside_the_cpu(OnTheCPU.open(), SMALL.served, torch.float32)[0]


def test_an_operator_on_the_host_is_found(lazy_gaudi: Gaudi) -> None:
    assert fallbacks(OnTheCPU.open())[0]
    lazy_gaudi.fallbacks = 2
    assert not fallbacks(OnTheCPU.open())[0]


def test_a_card_that_does_not_answer_is_reported_too(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: HPU) -> None:
        raise RuntimeError("synStatus=8 [Device not found]")

    monkeypatch.setattr(HPU, "memory", fails)
    about = environment(OnTheCPU.open())
    assert about["memory"] == "RuntimeError: synStatus=8 [Device not found]"
    assert about["card"] == "hpu: GAUDI3, lazy; 1 seen"


def test_after_the_time_limit_nothing_more_is_run(lazy_gaudi: Gaudi) -> None:
    found = findings(seconds=0.0)
    assert all(check.detail == "not run: 0 s were over" for check in found.checks)
    assert not found.ok


def test_numbers_that_are_missing_are_not_made_up() -> None:
    found = Findings(checks=[Check("time", True, "x | y")], timings=[examine.Timing("gather", 0.001, 1_000_000)])
    about = {"card": "hpu: GAUDI3, lazy; 1 seen"}
    assert as_json(about, found)["rows"][0]["mbu"] is None
    text = as_markdown(about, found)
    assert "| gather | 1.000 ms | 0.00 GB | - | 0.0% |" in text
    assert "| - | - |" in as_markdown({"card": "hpu: GAUDI9"}, found)
    assert "x \\| y" in text, "a bar does not break the table"


def test_the_tables_are_tables(lazy_gaudi: Gaudi) -> None:
    text = as_markdown(environment(OnTheCPU.open()), findings(seconds=0.0))
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def command(*arguments: str) -> tuple[int, str, str]:
    """Run `kvlab doctor --gaudi`: exit code, stdout, stderr."""
    answer = CliRunner().invoke(app, ["doctor", "--gaudi", *arguments])
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
    return answer.exit_code, answer.stdout, answer.stderr


def test_without_a_gaudi_the_command_says_so_and_what_to_do() -> None:
    code, out, _ = command()
    assert code == 1
    assert "no Gaudi" in out
    assert "-> Use the vendor's container image" in out
    code, out, _ = command("--json")
    assert code == 1
    told = json.loads(out)
    assert told["ok"] is False
    assert told["checks"][0]["remedy"]


@pytest.fixture
def gaudi_command(lazy_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch) -> Gaudi:
    """The command meets the stand-in and runs the small sizes."""
    device = OnTheCPU.open()
    monkeypatch.setattr(HPU, "open", lambda: device)
    monkeypatch.setattr(examine, "FULL", SMALL)
    return lazy_gaudi


def test_the_command_prints_a_report_to_paste(gaudi_command: Gaudi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_trials", lambda *_: [("a trial", lambda: (True, "fine"))])
    code, out, err = command()
    assert code == 0
    assert out.startswith("## kvlab on a Gaudi\n\n2 checks passed")
    assert "| pairing | warn |" in out
    assert err == "a trial\n", "progress goes to stderr"


def test_the_command_prints_one_object_and_fails_where_a_check_does(gaudi_command: Gaudi) -> None:
    gaudi_command.fallbacks = 1
    code, out, _ = command("--json")
    told = json.loads(out)
    assert code == 1
    assert told["ok"] is False
    assert told["environment"]["card"] == "hpu: GAUDI3, lazy; 1 seen"
    row = next(row for row in told["rows"] if row["name"] == "flat_pa")
    assert row["mbu"] == row["bytes"]["useful"] / row["median_s"] / told["bandwidth"]["read"]["bytes_per_s"]


def test_a_case_is_the_same_each_time_and_its_spare_blocks_are_poisoned() -> None:
    one, other = (decode_case([3, 20], TINY, torch.float32) for _ in range(2))
    assert torch.equal(one.store.keys.nan_to_num(7), other.store.keys.nan_to_num(7))
    owned = {block for layout in one.step.layouts for block in layout.blocks}
    assert len(owned) == 4
    for block in range(one.store.blocks):
        assert bool(one.store.keys[block].isnan().all()) == (block not in owned)
    assert bool((one.store.keys[one.store.pad_block] == 0).all())
