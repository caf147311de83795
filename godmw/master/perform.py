"""The master's hands: each action of the Coordinator is one call, in order, and nothing is decided.

A `Record` is durable before any later `Send` or `Answer` leaves: the journal is committed when one of them
comes up, once for all records before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from godmw.master.books import Books
from godmw.master.journal import Journal
from godmw.membership import actions
from godmw.membership.actions import EndJob
from godmw.membership.records import FinishMade
from godmw.protocol.fields import Checked
from godmw.protocol.messages import Reply


class Performer:
    """Performs on ``journal``, ``books`` and connections (``send``); events also go to ``publish``."""

    def __init__(
        self,
        journal: Journal,
        books: Books,
        send: Callable[[str, Checked], None],
        publish: Callable[[dict[str, Any]], None],
    ) -> None:
        self._journal = journal
        self._books = books
        self._send = send
        self._publish = publish
        self.finish: FinishMade | None = None
        self.ended: EndJob | None = None

    def perform(self, todo: Iterable[Any]) -> None:
        """Do everything in ``todo``, in order.  Raises TypeError on what is no action of a Coordinator."""
        for action in todo:
            match action:
                case actions.Send(peer, message):
                    self._journal.commit()
                    self._send(peer, message)
                case actions.Answer(peer, request, code, body):
                    self._journal.commit()
                    self._send(peer, Reply(request=request, code=code, body=json.dumps(body)))
                case actions.Record(record):
                    self._journal.append(record)
                    if isinstance(record, FinishMade):
                        self.finish = record
                case actions.WriteCommitted(committed, redone_shards):
                    self._books.committed(committed, redone_shards)
                case actions.WriteLoop(loop):
                    self._books.loop(loop)
                case actions.Log(kind, fields):
                    self._publish(self._books.log(kind, fields))
                case actions.EndJob():
                    self.ended = action
                case _:
                    raise TypeError(f"a coordinator does not ask for {type(action).__name__}")
        self._journal.commit()
