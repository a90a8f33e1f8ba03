"""The objects of OpenAI's Files API, and what files are for."""

import msgspec

# Those that something is done with here; files of other purposes would lie there for nothing.
UPLOADED = ("batch", "user_data")
OUTPUT = "batch_output"
PURPOSES = (*UPLOADED, OUTPUT)


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file, without its content."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the files, in order."""

    object: str = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A file is not kept any more."""

    id: str
    object: str = "file"
    deleted: bool = True
