"""Measure how many reported bugs `find` names, and how often it is wrong about healthy trainings.

    python -m tests.bench.score_findings            totals of each set, and missed bugs
    python -m tests.bench.score_findings NAME ...   these rows, with all findings
    python -m tests.bench.score_findings --run      recorded as `graphviz-torch run` does
    python -m tests.bench.score_findings --rules    the number of bugs with a finding of each rule

A bug scores 1 if one of the first two findings names its cause and its line, and 0.5 if one names
only the cause or only the line.
"""

from __future__ import annotations

import argparse

from tests.findings.corpus import cases, tables

assert tables  # importing the package fills the tables


def rows(name: str) -> list[cases.Reported]:
    return [row for row in cases.REPORTED.values() if row.set == name]


def show(findings: list[cases.Finding], limit: int) -> None:
    for finding in findings[:limit]:
        print(f"      {finding.severity} {finding.rule} [{finding.where}] {finding.message}")


def rules() -> None:
    """Print the bugs with a finding of each rule: by `record`, by `run`, and by only one."""
    spoken: dict[str, tuple[set[str], set[str]]] = {}
    for name, row in cases.REPORTED.items():
        for run in (False, True):
            for each in cases.play(row.program, row.raises, run=run):
                spoken.setdefault(each.rule, (set(), set()))[run].add(name)
    print("| rule | record | run | record alone | run alone |\n|---|---|---|---|---|")
    for rule, (whole, stepwise) in sorted(spoken.items()):
        alone = (", ".join(sorted(names)) for names in (whole - stepwise, stepwise - whole))
        print(f"| {rule} | {len(whole)} | {len(stepwise)} | {' | '.join(alone)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rows to print with all findings")
    parser.add_argument(
        "--run", action="store_true", help="record step by step, without the model's names"
    )
    parser.add_argument(
        "--rules", action="store_true", help="print a table of the rules, for `record` and `run`"
    )
    chosen = parser.parse_args()
    if chosen.rules:
        rules()
        return
    for name in chosen.names:
        row = cases.REPORTED.get(name)
        program = row.program if row else cases.HEALTHY[name]
        findings = cases.play(program, row.raises if row else None, run=chosen.run)
        print(name, f"{row.score(findings):g} {sorted(row.lines)}" if row else "")
        show(findings, 99)
    if chosen.names:
        return
    for name in ("before", "after", "blind", "tuning", "holdout", "recent", "unseen"):
        scores, misled = [], 0
        for row in rows(name):
            findings = cases.play(row.program, row.raises, run=chosen.run)
            scores.append(row.score(findings))
            misled += row.misled(findings)
            if scores[-1] < 1 or row.misled(findings):
                mark = " misleading" if row.misled(findings) else ""
                print(f"{scores[-1]:4g}  {row.name}{mark}")
                show(findings, 2)
        full, part = scores.count(1.0), scores.count(0.5)
        print(
            f"{name}: {sum(scores):g} of {len(scores)} ({sum(scores) / len(scores):.0%}): {full} "
            f"named, {part} hinted at, {len(scores) - full - part} silent, {misled} misleading\n"
        )
    repaired = {row.name: row.repaired for row in cases.REPORTED.values() if row.repaired}
    false = 0
    for name, program in repaired.items():
        loud = [f for f in cases.play(program) if f.severity != "info"]
        false += bool(loud)
        if loud:
            print(f"false alarm, repaired: {name}")
            show(loud, 2)
    print(f"repaired: {false} of {len(repaired)} with a false alarm")
    false = 0
    for name, program in cases.HEALTHY.items():
        loud = [f for f in cases.play(program, run=chosen.run) if f.severity != "info"]
        false += bool(loud)
        if loud:
            print(f"false alarm: {name}")
            show(loud, 2)
    print(f"healthy: {false} of {len(cases.HEALTHY)} with a false alarm")


if __name__ == "__main__":
    main()
