import json

import gossamer
from tests.cli.command_line import fails, gossamer_cli, succeeds


def test_devices():
    lines = succeeds("devices").stdout.splitlines()
    (host,) = [line for line in lines if line.startswith("host ")]
    assert host.split()[1] == "PASS"
    rows = json.loads(succeeds("devices", "--json").stdout)
    assert {row["name"] for row in rows} == {device.name for device in gossamer.devices()}
    keys = {"name", "description", "driver", "compute_units", "memory_bytes", "problem"}
    assert all(keys <= set(row) for row in rows)


def test_inspect(tiny):
    text = succeeds("inspect", tiny).stdout
    assert text.startswith("node") and "5 nodes" in text
    assert "first" in text and "133 parameters" in text
    summary = json.loads(succeeds("inspect", tiny, "--batch", 2, "--json").stdout)
    assert summary["parameters"] == 4 * 27 + 25
    assert summary["rows"][0]["flops"] >= 2 * 2 * 4 * 27 * 64


def failing(monkeypatch, error):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(gossamer, "load", load)


def test_ctrl_c(monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    assert fails(130, "inspect", "x") == "error: interrupted"


def test_own_faults_are_named_as_such(monkeypatch):
    failing(monkeypatch, ZeroDivisionError("by nothing"))
    line = fails(1, "inspect", "x")
    assert "fault in gossamer" in line and "by nothing" in line and "GOSSAMER_DEBUG" in line


def test_tracebacks_only_when_asked_for(tmp_path):
    words = ("inspect", tmp_path / "absent.onnx")
    asked = gossamer_cli(*words, env={"GOSSAMER_DEBUG": "1"})
    assert asked.exit_code == 2 and "Traceback" in asked.stderr
    assert "Traceback" not in gossamer_cli(*words, env={"GOSSAMER_DEBUG": "0"}).stderr


def test_long_messages_are_cut_to_their_first_line(monkeypatch):
    failing(monkeypatch, gossamer.errors.CompileError("it does not build:\nline 1\nline 2"))
    assert fails(2, "inspect", "x") == (
        "error: it does not build: (GOSSAMER_DEBUG=1 shows the rest)")
