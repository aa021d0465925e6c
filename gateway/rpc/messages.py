"""Makes the classes of the protobuf messages that `inference.proto` defines.

They are in a pool of their own: clients of the protocol put messages of the same names into the
default one, and may run in this process.
"""

from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from gateway.errors import InvalidRequest

Message = Any  # the classes are made at run time
PACKAGE: Final = "inference"
_COMPILED: Final = Path(__file__).with_name("inference.binpb")  # by `make proto`


class MessageTable:
    """Has the class of each message, by its name in the definition."""

    def __init__(self) -> None:
        self._pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(_COMPILED.read_bytes()).file:
            self._pool.Add(file)

    def __getitem__(self, name: str) -> Message:
        """Return a class; equal names have the same one."""
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def decode_message(kind: Message, raw: bytes) -> Message:
    """Return the message of that class that `raw` is.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise InvalidRequest(
            f"The body is no `{kind.DESCRIPTOR.name}` of the Open Inference Protocol."
        ) from error
