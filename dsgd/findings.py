"""The findings of a check, which can be printed as a table, queried, or raised as an error."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """The result of one check.

    Args:
        what: the property that was checked.
        holds: whether it holds; None if it could not be checked or does not apply.
        found: the measured value, the fault, or the reason why it was not checked, as text.
    """

    what: str
    holds: bool | None
    found: str


class Findings(NamedTuple):
    """The results of all checks; they print as a table.

    Args:
        of: what was checked.
        findings: one per check.
    """

    of: str
    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed. Checks that could not be executed do not count as failed;
        `findings` lists them.
        """
        return all(finding.holds is not False for finding in self.findings)

    def require(self) -> None:
        """Raises ValueError if a check failed. The message lists all that did."""
        wrong = [
            f"{finding.what}: {finding.found}"
            for finding in self.findings
            if finding.holds is False
        ]
        if wrong:
            raise ValueError(f"{self.of} violates the contract: " + "; ".join(wrong))

    def __str__(self) -> str:
        from rich.console import Console  # noqa: PLC0415 (imported only to print a table)
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
