"""`make bench-fairness`: the first report's case by a virtual clock and with a real model: tables, JSON, pictures.

In: which part and which arms. Out: every figure of every arm, and whether the goals are met. Part `replay` needs no
model and gives the same figures everywhere; part `served` measures SmolLM2 over HTTP at lengths divided by --divide,
against our own `fifo` and against llama.cpp on the same weights, and wants a quiet machine. It asserts nothing.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairness_answers import Answer, Counts, Figures, Pace, figures
from fairness_goals import goals_of_replay, goals_of_served
from fairness_http import PATIENT_SECONDS, Clients, ask_all, ask_one
from fairness_picture import draw_waits
from fairness_replay import Replay
from fairness_scenes import SEED_PACE, play_arms, replay_arms
from fairness_served import SERVED_ARMS, SERVED_NAME, Served, ServedArm, serve, why_missing
from fairness_trace import SDK_TIMEOUT_SECONDS, SEEDS, Entry, seed_trace, without_runaways
from report import machine, say, write_result
from table import Figure, render_table

FOLDER = Path(".artifacts")
PARTS = ("replay", "served")
SLOTS = (1, 2, 4)
WARM_UP = Entry(999, 8)


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(list(arguments))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is stopped
    FOLDER.mkdir(exist_ok=True)
    result: dict[str, Any] = {"machine": machine()}
    if options.part in (None, "replay"):
        result["replay"] = _replay(options.seeds, options.slots)
    if options.part in (None, "served"):
        result["served"] = _served(options.seeds[0], options.slots, options.divide, options.only)
    write_result(FOLDER / "fairness.json", result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/fairness.py", description="Replay the first report's case.")
    parser.add_argument("--part", choices=PARTS, help="replay: virtual clock, no model; served: SmolLM2; default both")
    parser.add_argument("--seeds", type=_numbers, default=SEEDS, metavar="K,...", help="served takes the first one")
    parser.add_argument("--slots", type=_numbers, default=None, metavar="S,...", help="default 1,2,4; served 1,2")
    parser.add_argument(
        "--only", type=_words, metavar="ARM;...", help="served: " + "; ".join(each.name for each in SERVED_ARMS)
    )
    parser.add_argument("--divide", type=int, default=16, metavar="N", help="served: lengths by so much, default 16")
    return parser


def _replay(seeds: Sequence[int], slots: Sequence[int] | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for number in SLOTS if slots is None else slots:
        by_seed = {seed: play_arms(seed, replay_arms(number)) for seed in seeds}
        shown = {name: _figures_of_replay(by_seed[seeds[0]], name) for name in by_seed[seeds[0]]}
        _print_table(f"virtual clock, {number} slots, seed {seeds[0]}, 59.5 tokens/s", shown)
        result[f"{number} slots"] = {
            "arms": {seed: {name: _figures_of_replay(arms, name) for name in arms} for seed, arms in by_seed.items()}
        }
        if number == 1:
            goals = goals_of_replay(by_seed)
            _print_goals("over all seeds", goals)
            result["goals"] = [vars(goal) for goal in goals]
            _draw("replay", {name: replay.answers for name, replay in by_seed[seeds[0]].items()}, "virtual clock")
    return result


def _figures_of_replay(arms: Mapping[str, Replay], name: str) -> Figures:
    return figures(arms[name].answers, arms[name].counts, SEED_PACE, arms["floor"].answers)


def _served(seed: int, slots: Sequence[int] | None, divide: int, only: Sequence[str] | None) -> dict[str, Any]:
    result: dict[str, Any] = {"divide": divide}
    solo: Sequence[Answer] = ()
    for number in (1, 2) if slots is None else slots:
        measured = {arm.name: _measure(arm, seed, number, divide) for arm in _arms_to_measure(only)}
        floor = measured.get("floor", next(iter(measured.values())))[0]
        solo = measured["fifo"][0] if number == 1 and "fifo" in measured else solo
        shown = {
            name: figures(answers, counts, pace, floor, solo, divide)
            for name, (answers, counts, pace) in measured.items()
        }
        _print_table(f"SmolLM2, {number} slots, seed {seed}, lengths / {divide}", shown)
        result[f"{number} slots"] = {"arms": shown}
        answers_by_arm = {name: answers for name, (answers, _, _) in measured.items()}
        _draw(f"served-{number}", answers_by_arm, f"SmolLM2, {number} slots, lengths / {divide}")
        if number == 1:
            goals = goals_of_served(answers_by_arm)
            _print_goals("one slot", goals)
            result["goals"] = [vars(goal) for goal in goals]
    return result


def _arms_to_measure(only: Sequence[str] | None) -> Iterator[ServedArm]:
    for arm in SERVED_ARMS:
        if only is not None and arm.name not in only:
            continue
        missing = why_missing(arm)
        if missing is None:
            yield arm
        else:
            print(f"{arm.name} was not measured: {missing}")


def _measure(arm: ServedArm, seed: int, slots: int, divide: int) -> tuple[list[Answer], Counts, Pace]:
    trace = seed_trace(seed, divide, arm.tenants)
    entries = trace if arm.has_runaways else without_runaways(trace)
    with serve(arm, slots, divide) as server:
        pace = _pace(server, arm)
        say(f"{arm.name}, {slots} slots: one answer alone runs at {pace.tokens_per_second:.1f} tokens/s")
        clients = _clients(server, arm, SDK_TIMEOUT_SECONDS / divide if arm.sdk_timeout else PATIENT_SECONDS)
        before = server.counts()
        with server.watch() as peaks:
            answers = ask_all(clients, entries)
        say(f"{arm.name}, {slots} slots: {max(answer.ended for answer in answers):.0f} s")
        return answers, peaks.added_to(server.counts().since(before)), pace


def _clients(server: Served, arm: ServedArm, timeout_seconds: float) -> Clients:
    return Clients(server.url, SERVED_NAME, arm.keys, arm.tenants, timeout_seconds, streamed=not arm.sdk_timeout)


def _pace(server: Served, arm: ServedArm) -> Pace:
    """What one answer costs that has the machine for itself; the first one pays for what is made lazily."""
    alone = Clients(server.url, SERVED_NAME, arm.keys, arm.tenants)
    ask_one(alone, WARM_UP)
    answer = ask_one(alone, Entry(998, 64))
    prefill = answer.first_token - answer.sent
    return Pace((answer.output_tokens - 1) / (answer.ended - answer.first_token), prefill)


def _print_table(title: str, shown: Mapping[str, Figures]) -> None:
    names = next(iter(shown.values()))
    rows = [
        Figure(name, "", {arm: value for arm, each in shown.items() if (value := each[name]) is not None})
        for name in names
    ]
    print(f"\n{title}; seconds and tokens, of the normal answers where nothing else is said")
    print(render_table(rows, list(shown)))


def _print_goals(title: str, goals: Sequence[Figure]) -> None:
    print(f"\ngoals, {title}")
    print(render_table(goals, ["value"]))


def _draw(name: str, arms: Mapping[str, Sequence[Answer]], title: str) -> None:
    print(draw_waits(FOLDER / f"fairness-{name}.png", arms, title))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(";"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
