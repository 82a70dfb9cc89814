"""The job queue: first come, first served, one job per visitor, a limited number at once."""

from __future__ import annotations

import threading


class Ticket:
    """A job's turn: in the queue until a place is free, then running, until `leave`."""

    def __init__(self, jobs: JobQueue, visitor: str) -> None:
        self._jobs, self.visitor = jobs, visitor

    @property
    def ahead(self) -> int | None:
        """The number of tickets before this one in the queue; None once it has a place."""
        return self._jobs.ahead(self)

    def leave(self) -> None:
        """Give the place in the queue, or the running place, to the next ticket."""
        self._jobs.leave(self)


class JobQueue:
    """A queue in which `count` tickets run at once and the others wait.

    >>> queue = JobQueue(1)
    >>> first, second = queue.enter("Ann"), queue.enter("Ben")
    >>> print(first.ahead, second.ahead)
    None 0
    >>> first.leave()
    >>> print(second.ahead)
    None
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._running: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """Return a new ticket at the end of the queue; it runs at once if a place is free."""
        ticket = Ticket(self, visitor)
        with self._lock:
            self._queue.append(ticket)
            self._admit()
        return ticket

    def ahead(self, ticket: Ticket) -> int | None:
        """Return the number of tickets before this one in the queue; None once it runs."""
        with self._lock:
            return self._queue.index(ticket) if ticket in self._queue else None

    def leave(self, ticket: Ticket) -> None:
        """Remove the ticket; removing it a second time does nothing."""
        with self._lock:
            for tickets in (self._queue, self._running):
                if ticket in tickets:
                    tickets.remove(ticket)
            self._admit()

    def _admit(self) -> None:
        for ticket in list(self._queue):
            if len(self._running) >= self.count:
                return
            # A visitor's second job waits for the first, but lets later visitors pass.
            if all(running.visitor != ticket.visitor for running in self._running):
                self._queue.remove(ticket)
                self._running.append(ticket)
