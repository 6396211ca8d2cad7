# cython: language_level=3, always_allow_keywords=False, boundscheck=False, wraparound=False
"""What this machine can do at best, so that every rate in the table has a ceiling next to it.

Compiled on demand by `bench.native`; nothing of Penstock depends on it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef extern from "fcntl.h" nogil:
    int c_open "open"(const char *path, int flags, int mode)
    int O_RDWR
    int O_CREAT
    int O_CLOEXEC

cdef extern from "unistd.h" nogil:
    int c_close "close"(int fd)
    int fdatasync(int fd)
    int fsync(int fd)
    ssize_t pwrite(int fd, const void *data, size_t size, int64_t offset)


cdef class Noop:
    """The cheapest method that still does what every append must: take bytes, give back a new int.

    The counter starts above 2**40, so that no result comes out of the cache of small ints. Without keywords the method
    is METH_O, the fastest way into C there is.
    """

    cdef int64_t sequence

    def __cinit__(self):
        self.sequence = 1 << 40

    def append(self, bytes payload):
        """Do nothing with `payload`."""
        self.sequence += 1
        return self.sequence


cdef class Memory:
    """A touched buffer to copy messages into, larger than any cache, round and round."""

    cdef char *data
    cdef size_t size
    cdef size_t position

    def __cinit__(self, size_t size):
        self.size = size
        self.position = 0
        self.data = <char *> malloc(size)
        if self.data == NULL:
            raise MemoryError()
        memset(self.data, 1, size)

    def __dealloc__(self):
        free(self.data)

    def copy_list(self, list batch):
        """Copy every message of the list: the same bytes, the same objects, no queue around them."""
        cdef size_t length
        cdef bytes payload
        for payload in batch:
            length = PyBytes_GET_SIZE(payload)
            if self.position + length > self.size:
                self.position = 0
            memcpy(self.data + self.position, PyBytes_AS_STRING(payload), length)
            self.position += length


cdef class DurableFile:
    """A file whose blocks are allocated and written beforehand, so that a sync has to move data only."""

    cdef int fd
    cdef int64_t size
    cdef int64_t position

    def __cinit__(self, path, int64_t size):
        cdef bytes name = path.encode()
        self.fd = c_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        if self.fd < 0:
            raise OSError(f"cannot open {path}")
        self.size = size
        self.position = 0
        zeros = bytes(1 << 20)
        for offset in range(0, size, len(zeros)):
            self._put(zeros, offset)
        if fsync(self.fd) != 0:
            raise OSError(f"cannot sync {path}")

    cdef int _put(self, bytes data, int64_t offset) except -1:
        cdef const char *start = PyBytes_AS_STRING(data)
        cdef size_t length = PyBytes_GET_SIZE(data)
        cdef ssize_t done
        while length:
            with nogil:
                done = pwrite(self.fd, start, length, offset)
            if done <= 0:
                raise OSError("write failed")
            start += done
            offset += done
            length -= done
        return 0

    def write(self, bytes data):
        """Write `data` and wait until it is on disk."""
        if self.position + len(data) > self.size:
            self.position = 0
        self.append(data)

    def append(self, bytes data):
        """The same behind what was written last, wherever the file ends."""
        cdef int failed
        self._put(data, self.position)
        self.position += len(data)
        with nogil:
            failed = fdatasync(self.fd)
        if failed:
            raise OSError("fdatasync failed")

    def close(self):
        """Close the file."""
        if self.fd >= 0:
            c_close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)
