"""The last sentence of a program, on standard error and in Kubernetes' termination message."""

from pathlib import Path

import pytest

from plimsoll_runtime.contract.last_words import MAX_MESSAGE_BYTES, TERMINATION_LOG_VARIABLE, give_up


def test_without_kubernetes_the_sentence_is_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TERMINATION_LOG_VARIABLE, raising=False)
    assert give_up("serve", "no model") == 1
    assert capsys.readouterr().err == "plimsoll serve: no model\n"


@pytest.mark.parametrize(("sentence", "kept"), [("a b", "a b"), ("é" * 2000, "é" * (MAX_MESSAGE_BYTES // 2))])
def test_the_beginning_of_the_sentence_is_in_the_termination_message(
    sentence: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "termination-log"
    place.write_text("of an earlier start")
    monkeypatch.setenv(TERMINATION_LOG_VARIABLE, str(place))
    give_up("serve", sentence)
    assert place.read_text() == kept


def test_a_message_file_that_cannot_be_written_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TERMINATION_LOG_VARIABLE, str(tmp_path))
    assert give_up("serve", "no model") == 1
    assert "plimsoll serve: no model\n" in capsys.readouterr().err
