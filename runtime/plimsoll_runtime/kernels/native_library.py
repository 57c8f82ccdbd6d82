"""The native library, opened: threads and an instruction set to compute with, and matrices packed for it.

Owns the C interface (native/interface.cpp) as Python sees it: its signatures, its handles and who frees them. In: the
number of threads, and an instruction set where not the best one shall be used. Out: `NativeKernels`, or a sentence why
there are none. It does not choose when to compute natively (choice.py does). Invariants: what is handed to the
library is contiguous, of the right dtype and shape, and lives through the call; a handle is freed once, after all that
was made with it; a library made of other sources than those beside it is never called, since its structs may differ.
"""

import ctypes
import weakref

import torch

from plimsoll_runtime.kernels.native import LIBRARY_PATH
from plimsoll_runtime.kernels.native.build import source_hash
from plimsoll_runtime.kernels.stored import Storage, StoredTensor, stored_bytes

NATIVE_STORAGES = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})

PANEL_ROWS = 16
"""Rows that lie side by side in the library's layout; the last ones are filled up."""

LAYOUT_VERSION = 1
"""Of the layout as it may lie in a file (models/experts): a change of the bytes that `pack_into` writes raises it."""

GENERIC = "generic"
"""The instruction set of every processor: 3 to 9 times slower than torch, so it is taken only where it is named."""

_POINTER, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "plimsoll_source_hash": (_TEXT, []),
    "plimsoll_num_instruction_sets": (_INT, []),
    "plimsoll_instruction_set_name": (_TEXT, [_INT]),
    "plimsoll_can_use": (_INT, [_INT]),
    "plimsoll_open": (_POINTER, [_INT, _INT]),
    "plimsoll_close": (None, [_POINTER]),
    "plimsoll_num_threads": (_INT, [_POINTER]),
    "plimsoll_pack": (_POINTER, [_POINTER, _TEXT, _SIZE, _SIZE, _POINTER]),
    "plimsoll_pack_into": (_INT, [_POINTER, _TEXT, _SIZE, _SIZE, _POINTER, _POINTER]),
    "plimsoll_view": (_POINTER, [_TEXT, _SIZE, _SIZE, _POINTER]),
    "plimsoll_free": (None, [_POINTER]),
    "plimsoll_matrix_bytes": (_SIZE, [_POINTER]),
    "plimsoll_multiply": (_INT, [_POINTER, _POINTER, _POINTER, _SIZE, _POINTER]),
    "plimsoll_forward": (_INT, [_POINTER, _POINTER, _POINTER]),
    "plimsoll_attend": (_INT, [_POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER]),
    "plimsoll_take_rows": (None, [_POINTER, _POINTER, _POINTER, _SIZE, _POINTER]),
}


class NativeError(Exception):
    """One sentence: why there are no native kernels, or why they failed."""


class NativeKernels:
    """Used by one thread at a time. `handle` is the library's own, for other functions of the library."""

    def __init__(self, library: ctypes.CDLL, handle: int, instructions: str) -> None:
        self.library = library
        self.handle = handle
        self.instructions = instructions
        self.num_threads: int = library.plimsoll_num_threads(handle)
        # Not when the process ends: the engine's thread may still be computing.
        weakref.finalize(self, library.plimsoll_close, handle).atexit = False

    def pack(self, stored: StoredTensor, dtype: torch.dtype) -> "NativeMatrix":
        """Copies the weights into the library's layout; the stored bytes are not needed afterwards. Products and rows
        come out in `dtype`."""
        data = stored.data_RB.contiguous()
        name = stored.storage.name.encode()
        handle = self.library.plimsoll_pack(self.handle, name, stored.num_rows, stored.num_columns, data.data_ptr())
        if not handle:
            raise NativeError(f"{stored.num_rows} x {stored.num_columns} weights of {stored.storage.name}: no memory")
        return NativeMatrix(self, handle, stored.num_rows, stored.num_columns, dtype)

    def pack_into(self, stored: StoredTensor, panels: torch.Tensor) -> None:
        """Writes the library's layout of these weights into `packed_bytes` bytes of the caller's."""
        data, name = stored.data_RB.contiguous(), stored.storage.name.encode()
        assert panels.is_contiguous()
        assert panels.numel() == packed_bytes(stored.storage, stored.shape)
        failed = self.library.plimsoll_pack_into(
            self.handle, name, stored.num_rows, stored.num_columns, data.data_ptr(), panels.data_ptr()
        )
        assert not failed, f"the library has no {stored.storage.name}"

    def view(
        self, storage: Storage, shape: tuple[int, int], dtype: torch.dtype, panels: torch.Tensor
    ) -> "NativeMatrix":
        """A matrix over bytes that `pack_into` wrote. They stay the caller's, who may write other weights of the same
        kind there between two products."""
        assert panels.is_contiguous()
        assert panels.numel() == packed_bytes(storage, shape)
        handle = self.library.plimsoll_view(storage.name.encode(), *shape, panels.data_ptr())
        if not handle:
            raise NativeError(f"a view of {shape[0]} x {shape[1]} weights of {storage.name}: no memory")
        return NativeMatrix(self, handle, *shape, dtype, panels)


class NativeMatrix:
    """A packed `[R, C]` matrix of quantized weights. `handle` is the library's own; `panels` are the bytes that it
    computes with, where they are not."""

    def __init__(
        self,
        kernels: NativeKernels,
        handle: int,
        num_rows: int,
        num_columns: int,
        dtype: torch.dtype,
        panels: torch.Tensor | None = None,
    ) -> None:
        self._kernels = kernels
        self._panels = panels
        self.handle = handle
        self.num_rows = num_rows
        self.num_columns = num_columns
        self.dtype = dtype
        self.num_bytes: int = kernels.library.plimsoll_matrix_bytes(handle)
        self._multiply = kernels.library.plimsoll_multiply
        weakref.finalize(self, kernels.library.plimsoll_free, handle).atexit = False

    def project(self, input_TC: torch.Tensor) -> torch.Tensor:
        """`[T, C] @ [R, C]^T -> [T, R]`, the input quantized to 8 bits by groups of 32."""
        values_TC = input_TC.float().contiguous()
        num_tokens, num_columns = values_TC.shape
        assert num_columns == self.num_columns, f"input of {num_columns} columns for a matrix of {self.num_columns}"
        output_TR = torch.empty((num_tokens, self.num_rows), dtype=torch.float32)
        if self._multiply(self._kernels.handle, self.handle, values_TC.data_ptr(), num_tokens, output_TR.data_ptr()):
            raise NativeError(f"no memory for a product of {num_tokens} rows of {num_columns}")
        return output_TR.to(self.dtype)

    def take_rows(self, rows_T: torch.Tensor) -> torch.Tensor:
        """The given rows (int64) as `[T, C]`. Raises IndexError for a row that there is not."""
        rows = rows_T.to(torch.int64).contiguous()
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.num_rows:
            raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} of a matrix of {self.num_rows}")
        output_TC = torch.empty((rows.numel(), self.num_columns), dtype=torch.float32)
        self._kernels.library.plimsoll_take_rows(
            self._kernels.handle, self.handle, rows.data_ptr(), rows.numel(), output_TC.data_ptr()
        )
        return output_TC.to(self.dtype)


def packed_bytes(storage: Storage, shape: tuple[int, ...]) -> int:
    """Bytes of a `[R, C]` matrix in the library's layout: those of its file, with the last panel filled up."""
    num_rows, num_columns = shape
    return stored_bytes(storage, (-(-num_rows // PANEL_ROWS) * PANEL_ROWS, num_columns))


def open_native(num_threads: int, instructions: str | None = None) -> NativeKernels:
    """Starts the library's threads. Raises NativeError where there is no library, or not that instruction set."""
    library = _load_library()
    usable = _usable_sets(library)
    name = list(usable)[-1] if instructions is None else instructions
    if name not in usable:
        raise NativeError(f"this processor has no {name}; it has {', '.join(usable)}")
    handle = library.plimsoll_open(num_threads, usable[name])
    if not handle:
        raise NativeError(f"{num_threads} threads could not be started")
    return NativeKernels(library, handle, name)


def usable_instructions() -> tuple[str, ...]:
    """The instruction sets that this processor can run, the best one last. Raises NativeError without a library."""
    return tuple(_usable_sets(_load_library()))


def _usable_sets(library: ctypes.CDLL) -> dict[str, int]:
    numbers = range(library.plimsoll_num_instruction_sets())
    names = {number: library.plimsoll_instruction_set_name(number).decode() for number in numbers}
    return {name: number for number, name in names.items() if library.plimsoll_can_use(number)}


def _load_library() -> ctypes.CDLL:
    if not LIBRARY_PATH.exists():
        raise NativeError("the native kernels were not built; `make native` builds them where a C++ compiler is")
    try:
        library = ctypes.CDLL(str(LIBRARY_PATH))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise NativeError(f"{LIBRARY_PATH} is not the library of this version ({error}): run make native") from error
    if library.plimsoll_source_hash().decode() != source_hash():
        raise NativeError(f"{LIBRARY_PATH} was not made of the sources beside it: run make native")
    return library
