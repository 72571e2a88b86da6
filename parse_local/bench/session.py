"""One benchmark from beginning to end: warm up, measure, answer, keep, report."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parse_local._version import __version__
from parse_local.bench import runner
from parse_local.bench.measured_costs import measure_costs
from parse_local.bench.page import page
from parse_local.bench.peers import Peers, PeerSpec
from parse_local.bench.plots import plots
from parse_local.bench.record import Record
from parse_local.bench.report import markdown
from parse_local.bench.run_directory import RunDirectory
from parse_local.bench.summary import Row, complete, summarize
from parse_local.bench.systems import EngineSystem, Item, System
from parse_local.bench.tasks import Problem
from parse_local.costs import PairCosts
from parse_local.engine import Engine
from parse_local.errors import OutOfMemoryError, UsageError
from parse_local.llama import library
from parse_local.load_options import LoadOptions


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Args:
        task: its name, for the report.
        problems: in order.
        items: strategies, the base among them.
        peers: other programs.
        repeat: times that everything is answered.
        max_tokens: of each answer, None for what the problem says.
        load: how the pair is loaded.
    """

    task: str
    problems: Sequence[Problem]
    items: Sequence[Item]
    peers: Sequence[PeerSpec] = ()
    repeat: int = 1
    max_tokens: int | None = None
    load: LoadOptions = field(default_factory=LoadOptions)

    def settings(self, engine: Engine) -> dict[str, Any]:
        """What has to be the same for answers to belong to one run."""
        files = [w.model.path for w in (engine.draft, engine.target) if w is not None]
        asked = json.dumps([[p.name, list(p.messages)] for p in self.problems])
        return {
            "version": __version__,
            "pair": engine.pair_name,
            "files": [[f.name, f.stat().st_size] for f in files],
            "profile": _digest(repr(engine.profile)),
            "task": self.task,
            "problems": len(self.problems),
            "questions": _digest(asked),
            "strategies": [item.name for item in self.items],
            "peers": [asdict(p) for p in self.peers],
            "repeat": self.repeat,
            "max_tokens": self.max_tokens,
            "threads": engine.target.context.n_threads,
            "load": {**asdict(self.load), "spec_model": str(self.load.spec_model or "")},
        }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Session:
    """A run in its directory.

    Args:
        engine: a loaded pair.
        plan: what is to be run.
        out: the directory; one that holds the beginning of the same run is gone on with.

    Raises:
        UsageError: the directory holds something else.
    """

    def __init__(self, engine: Engine, plan: Plan, out: Path) -> None:
        self.stop = runner.Stop()
        self.directory = RunDirectory(out, plan.settings(engine))
        self.strategies = [item.name for item in plan.items]
        self._engine = engine
        self._plan = plan

    def run(
        self,
        preparing: Callable[[str], None],
        begun: Callable[[int, int], None],
        done: Callable[[Record], None],
    ) -> None:
        """Answer what is missing; returns early after `stop.press()`.

        Args:
            preparing: told what goes on before and after the answers.
            begun: told how many answers there are to be and how many are there already, when
                the clock starts.
            done: told each answer as it is finished.

        Raises:
            PeerError: a peer cannot be started or does not answer.
            ParseLocalError: as `Engine.stream`.
        """
        plan = self._plan
        if plan.peers:
            preparing("starting peers")
        with Peers(plan.peers, self._engine, plan.load) as peers:
            systems: list[System] = [EngineSystem(self._engine, i, os.getpid()) for i in plan.items]
            systems += peers.systems
            self.strategies = [s.name for s in systems]
            there = {r.key for r in self.directory.records}
            total = len(plan.problems) * len(systems) * plan.repeat
            if len(there) < total:
                preparing("warming up")
                runner.warm_up(systems, plan.problems[0], self.stop)
                self._measure_costs(preparing)
            self.directory.update(strategies=self.strategies, about=self.about())
            begun(total, len(there))
            for record in runner.run(
                systems,
                plan.problems,
                repeat=plan.repeat,
                max_tokens=plan.max_tokens,
                done=there,
                stop=self.stop,
            ):
                self.directory.add(record)
                done(record)
            if len(there) < total:
                self._measure_costs(preparing)

    def close(self) -> None:
        """Leave the directory to others."""
        self.directory.close()

    def _measure_costs(self, preparing: Callable[[str], None]) -> None:
        # Before and after the answers, whenever there are some to be made: a machine's speed
        # changes from minute to minute, and not for all sizes alike.
        if self._engine.draft is None or self.stop.pressed:
            return
        preparing("measuring what decodes cost")
        try:
            costs = measure_costs(self._engine, self._plan.load, lambda: self.stop.pressed)
        except OutOfMemoryError:  # then there is no bound
            return
        if costs is not None:
            self.directory.update(costs=[*self._measured(), costs.to_json()])

    def _measured(self) -> list[Any]:
        found = self.directory.read("costs") or []
        return found if isinstance(found, list) else [found]  # one alone in older runs

    def about(self) -> dict[str, str]:
        """What was run, on what."""
        engine, plan, info = self._engine, self._plan, library.info()
        files = [w.model.path.name for w in (engine.draft, engine.target) if w is not None]
        device = next((d.description.strip() for d in info.devices), platform.processor())
        n = engine.target.context.n_threads
        library_kind = "patched" if info.patched else "stock"
        times = f", {plan.repeat} times" if plan.repeat > 1 else ""
        limit = f", at most {plan.max_tokens} tokens" if plan.max_tokens else ""
        return {
            "pair": f"{engine.pair_name} ({' for '.join(files)})",
            "task": f"{plan.task}, {len(plan.problems)} problems{times}{limit}",
            "machine": f"{platform.system()} {platform.machine()}, {device}, "
            f"{n} thread{'s' * (n > 1)}",
            "program": f"parse-local {__version__}, llama.cpp {library_kind}, greedy",
        }

    def report(self) -> tuple[list[Row], str]:
        """Write summary.json, summary.md, the plots and index.html; returns rows and a note.

        Of what is there: also after an interruption.
        """
        directory, plan = self.directory, self._plan
        costs = [PairCosts.from_json(c) for c in self._measured()]
        records = complete(directory.records, self.strategies, plan.repeat)
        rows = summarize(
            records,
            self.strategies,
            costs=PairCosts.middle(costs) if costs else None,
            draft_proposes=plan.load.spec == "draft",
        )
        about, drawn, note = self.about(), {}, ""
        if rows:
            try:
                drawn = plots(rows)
            except UsageError as error:
                note = str(error)
        directory.write_summary(rows)
        directory.write("summary.md", markdown(rows, about))
        for title, svg in drawn.items():
            directory.write(f"plots/{title.lower().replace(' ', '-')}.svg", svg)
        html = page(
            rows,
            directory.records,
            title=f"{self._engine.pair_name} on {plan.task}",
            about=about,
            questions={p.name: _question(p) for p in plan.problems},
            plots=drawn,
        )
        directory.write("index.html", html)
        return rows, note


def _question(problem: Problem) -> str:
    return "\n\n".join(message["content"] for message in problem.messages)
