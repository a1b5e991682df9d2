"""Which file systems cannot carry a store: SQLite's shared memory and locks work on one machine only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import StorageError

_MOUNTS = Path("/proc/self/mountinfo")
#: Types of file systems that are shared with other machines, or that keep no locks.
NETWORK = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs",
    "beegfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "coda", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.ceph-fuse", "fuse.davfs2", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.goofys", "fuse.mergerfs",
    "fuse.juicefs", "fuse.moosefs", "fuse.mfs", "fuse.curlftpfs", "fuse.smbnetfs", "fuse.afp_client",
    "fuse.blobfuse", "fuse.blobfuse2",
})  # fmt: skip


def refuse_network(directory: Path) -> None:
    """Raise StorageError when ``directory`` is on a network file system. Where the types are not to be had: nothing."""
    try:
        mounts = _MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    kind = kind_of(os.path.realpath(directory), mounts)
    if kind in NETWORK:
        raise StorageError(
            f"{directory} is on a network file system ({kind}), where SQLite's locks do not hold and jobs would "
            "be lost; use a directory on a local disk, or a Redis storage to share jobs between machines"
        )


def kind_of(path: str, mounts: str) -> str:
    """The type of the file system that holds an absolute path, by the text of ``/proc/self/mountinfo``."""
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        # Of two mounts on one point the later one is seen.
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, kind = point, after.split(" ")[0]
    return kind
