"""What a check has found, to print as a table, to ask, or to raise."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at.

    Args:
        what: of the contract.
        holds: whether it does; None where it could not be looked at, or does not apply.
        found: in words: what was measured, what is wrong, or why it was not looked at.
    """

    what: str
    holds: bool | None
    found: str


class Findings(NamedTuple):
    """All of them; it prints as a table.

    Args:
        of: what was checked.
        findings: one each.
    """

    of: str
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found to be wrong. What could not be looked at is no fault:
        `findings` names it.
        """
        return all(finding.holds is not False for finding in self.findings)

    def require(self) -> None:
        """Raises a ValueError where something is wrong; it names all that is."""
        wrong = [
            f"{finding.what}: {finding.found}"
            for finding in self.findings
            if finding.holds is False
        ]
        if wrong:
            raise ValueError(f"{self.of} does not hold the contract; " + "; ".join(wrong))

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415 (only who prints a table pays for it)
        from rich.table import Table  # noqa: PLC0415

        table = Table(title=self.of, title_justify="left")
        table.add_column("", no_wrap=True)
        table.add_column("holds", no_wrap=True)
        table.add_column("found")
        for finding in self.findings:
            table.add_row(
                finding.what, {True: "yes", False: "NO", None: "-"}[finding.holds], finding.found
            )
        console = Console(width=80)
        with console.capture() as captured:
            console.print(table, markup=False)
        return captured.get().rstrip()
