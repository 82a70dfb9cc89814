"""How many jobs run at once, and who is next: first come, first served, one job a visitor."""

from __future__ import annotations

import threading


class Ticket:
    """A visitor's turn: in the queue until there is a place, then inside, until `leave`."""

    def __init__(self, jobs: JobQueue, visitor: str) -> None:
        self._jobs, self.visitor = jobs, visitor

    @property
    def before(self) -> int | None:
        """How many tickets stand before this one; None once it has a place."""
        return self._jobs.before(self)

    def leave(self) -> None:
        """Give the place, or the turn, to the next one."""
        self._jobs.leave(self)


class JobQueue:
    """So many jobs at once, and those that wait.

    >>> queue = JobQueue(1)
    >>> first, second = queue.enter("Ann"), queue.enter("Ben")
    >>> print(first.before, second.before)
    None 0
    >>> first.leave()
    >>> print(second.before)
    None
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._inside: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """A ticket at the end of the queue; it has its place at once where one is free."""
        ticket = Ticket(self, visitor)
        with self._lock:
            self._queue.append(ticket)
            self._admit()
        return ticket

    def before(self, ticket: Ticket) -> int | None:
        """How many tickets stand before this one in the queue; None once it is inside."""
        with self._lock:
            return self._queue.index(ticket) if ticket in self._queue else None

    def leave(self, ticket: Ticket) -> None:
        """Take the ticket out; a second time does nothing."""
        with self._lock:
            for tickets in (self._queue, self._inside):
                if ticket in tickets:
                    tickets.remove(ticket)
            self._admit()

    def _admit(self) -> None:
        for ticket in list(self._queue):
            if len(self._inside) >= self.count:
                return
            # Whoever has a job waits for its end, and holds up nobody behind.
            if all(inside.visitor != ticket.visitor for inside in self._inside):
                self._queue.remove(ticket)
                self._inside.append(ticket)
