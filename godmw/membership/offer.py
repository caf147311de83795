"""What a worker brings to a job, compared with what the first worker brought.

The digests decide; the details, words that the engine wrote about itself, only say what it is that
differs: ``{"batch_size": 8, …}; 20 parameters``.
"""

from __future__ import annotations

import json
from typing import Any

from godmw.membership import records as rec
from godmw.protocol import messages as msg


def difference(offer: rec.OfferSet, message: msg.Prepared) -> str:
    """What a worker brings that the job does not have, in words; empty when all agrees."""
    if offer.settings != message.settings.hex():
        return _settings_differ(offer.detail, message.detail)
    if offer.model != message.model.hex():
        (_, theirs), (_, ours) = _split(offer.detail), _split(message.detail)
        other = f"the job's has {theirs}" if ours != theirs else "other names, shapes or dtypes"
        return f"this worker's model is not the job's: it has {ours}, {other}"
    if offer.data != message.data.hex():
        return "this worker's dataset is not the job's: other samples, or in another order"
    if message.seed >= 0 and message.seed != offer.seed:
        return f"seed {message.seed} was given, the job's is {offer.seed}"
    return ""


def _settings_differ(theirs: str, ours: str) -> str:
    job, mine = _split(theirs)[0], _split(ours)[0]
    if not isinstance(job, dict) or not isinstance(mine, dict):
        return f"this worker's script does {ours} where the job's does {theirs}"
    keys = [key for key in mine if mine[key] != job.get(key)]
    if keys == ["data"]:
        return "this worker's dataset is not the job's: other samples, or in another order"
    named = [f"{key}={json.dumps(mine[key])} (the job has {json.dumps(job.get(key))})" for key in keys]
    if "samples" in keys or "batch_size" in keys:  # what follows from them is not worth a word
        named = [text for key, text in zip(keys, named, strict=True) if key not in ("data", "shards")]
    return f"this worker's settings are not the job's: {', '.join(named) or 'other keys'}"


def _split(detail: str) -> tuple[Any, str]:
    """The settings, parsed where they are JSON, and the words on the model."""
    settings, _, model = detail.rpartition("; ")
    try:
        return json.loads(settings), model
    except ValueError:
        return settings, model
