"""Defines the values of the configuration state that all workers share."""

from enum import StrEnum

import msgspec

from sluicegate.gateway.config.sources import DocumentSource

RELOAD_TIMEOUT = 60.0
"""Seconds for which operators wait for a reload, as backends load a new revision before they serve
it."""


class Topic(StrEnum):
    """Names a part of the configuration state that can change.

    `CONFIG` is the configuration document. `EPOCHS` are the cache epochs: raising an epoch purges
    cached results. `ACCOUNTS` are tenants and API keys. `MODELS` are the served models, and
    `DRAINS` the drained backends.
    """

    CONFIG = "config"
    EPOCHS = "epochs"
    ACCOUNTS = "accounts"
    MODELS = "models"
    DRAINS = "drains"


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a published configuration document.

    `generation` is the number of this publication. `origin` is the number of the first publication
    of the same text. After a rollback, `origin` is less than `generation`. `folder_digest` is the
    digest of the configuration folder when the folder was last published. If the folder now has a
    different digest, it was edited after that publication.
    """

    generation: int
    origin: int
    digest: str
    sources: tuple[DocumentSource, ...]
    author: str
    reason: str
    time: float
    folder_digest: str = ""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the version of each topic.

    Any change of a topic changes its version.
    """

    config: int = 0
    epochs: int = 0
    accounts: int = 0
    models: int = 0
    drains: int = 0
    purge_history: str = ""
    """The id of the history of purges. It changes if purges were lost. It is empty until it has
    been read."""

    def of(self, topic: Topic) -> int:
        """Return the version of `topic`."""
        return int(getattr(self, topic.value))
