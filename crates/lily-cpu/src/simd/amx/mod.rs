//! AMX: sums of 16 x 16 products of bytes in tile registers, beside AVX-512 for all else.
//!
//! The compiler has no stable intrinsics for tiles and never uses these registers itself, so instructions are written out. Tiles belong
//! to a thread: [`Tiles`] configures them and lets them go when it is dropped, since threads with tiles in use are switched more slowly.

mod block;

use std::arch::asm;
use std::sync::LazyLock;

pub(super) use block::integer_block;

/// Rows of a tile, and 32-bit columns.
const SIDE: usize = 16;

/// Bytes of a tile's row.
const ROW_BYTES: usize = 4 * SIDE;

/// Bytes of a tile.
const TILE_BYTES: usize = SIDE * ROW_BYTES;

/// Whether this process may use tiles: the processor has them, and the system, which has to be asked, gives the room to
/// keep them in. The answer holds for all threads.
pub(super) fn granted() -> bool {
    static GRANTED: LazyLock<bool> = LazyLock::new(|| offered() && allowed());
    *GRANTED
}

/// Whether the processor says that it has tiles and multiplies bytes in them.
fn offered() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (AMX_TILE | AMX_INT8) == AMX_TILE | AMX_INT8
}

#[cfg(target_os = "linux")]
fn allowed() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: the call reads and writes no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The thread's tiles, configured.
///
/// Tiles 0 to 3 are sums, 4 and 5 activations: as many rows as were asked for. Tiles 6 and 7 are weights: 16 rows, one for each four inputs.
struct Tiles {
    rows: usize,
}

impl Tiles {
    /// # Safety
    /// Tiles are [`granted`].
    unsafe fn new(rows: usize) -> Tiles {
        let mut tiles = Tiles { rows: 0 };
        // SAFETY: the caller's promise.
        unsafe { tiles.resize(rows) };
        tiles
    }

    /// From now on activations and sums have as many rows, 1 to 16; what tiles held is gone if that is another number.
    ///
    /// # Safety
    /// As for [`Tiles::new`].
    unsafe fn resize(&mut self, rows: usize) {
        assert!((1..=SIDE).contains(&rows), "{rows} rows of a tile");
        if rows == self.rows {
            return;
        }
        self.rows = rows;
        let mut config =
            Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(ROW_BYTES as u16);
        config.rows[..6].fill(rows as u8);
        config.rows[6..8].fill(SIDE as u8);
        // SAFETY: the configuration is one of palette 1, with eight tiles of at most 16 rows of 64 bytes; the caller's promise.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever made this promised that there are tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Tile T = 0.
///
/// # Safety
/// A [`Tiles`] of this thread lives.
#[inline(always)]
unsafe fn zero<const T: usize>() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags)) };
}

/// Loads tile T from rows that lie one behind the other.
///
/// # Safety
/// A [`Tiles`] of this thread lives, and memory is valid for the rows of this tile.
#[inline(always)]
unsafe fn load<const T: usize>(from: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tileloadd tmm{t}, [{from} + {stride}*1]", t = const T, from = in(reg) from, stride = in(reg) ROW_BYTES,
            options(nostack, readonly, preserves_flags));
    }
}

/// Stores tile T as rows that lie one behind the other.
///
/// # Safety
/// A [`Tiles`] of this thread lives, and memory is valid for the rows of this tile.
#[inline(always)]
unsafe fn store<const T: usize>(to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tilestored [{to} + {stride}*1], tmm{t}", t = const T, to = in(reg) to, stride = in(reg) ROW_BYTES,
            options(nostack, preserves_flags));
    }
}

/// Adds to tile C the products of the rows of tile A, signed bytes, with tile B, unsigned ones: `C[r, o] += sum of A[r, 4 i + j] * B[i, 4 o + j]`.
///
/// # Safety
/// A [`Tiles`] of this thread lives.
#[inline(always)]
unsafe fn multiply<const C: usize, const A: usize, const B: usize>() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tdpbsud tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
            options(nostack, nomem, preserves_flags));
    }
}
