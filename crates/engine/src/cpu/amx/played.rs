//! Plays the instructions of AMX for tests on machines without it: each raises SIGILL, and the handler computes what it would have.
//!
//! It decodes what this crate emits: LDTILECFG of eight whole tiles, TILERELEASE, TILEZERO, TILELOADD, TILESTORED and TDPBF16PS.

use std::cell::UnsafeCell;
use std::sync::OnceLock;

use super::SIDE;

/// Eight registers of 16 rows of 64 bytes.
type Registers = [[[u32; SIDE]; SIDE]; 8];

thread_local! {
    /// Without a destructor and with a constant start, so that a handler may use it.
    static REGISTERS: UnsafeCell<Registers> = const { UnsafeCell::new([[[0; SIDE]; SIDE]; 8]) };
}

/// Lets this process run the instructions from here on.
pub fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: the handler allocates nothing and takes no lock, and the structure is whole.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_illegal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()), 0);
        }
    });
}

unsafe extern "C" fn on_illegal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the state of the thread, whose instruction pointer is valid.
    unsafe {
        let state = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        match play(state) {
            Some(len) => state[libc::REG_RIP as usize] += len,
            // It is illegal for another reason: it comes again, and ends the process.
            None => drop(libc::signal(libc::SIGILL, libc::SIG_DFL)),
        }
    }
}

/// An instruction with a VEX prefix of three bytes.
struct Decoded {
    /// Which of the prefixes none, 66, F3, F2.
    prefix: u8,
    opcode: u8,
    /// The register that the prefix names.
    third: usize,
    /// The operand's form, the register, and the other register or base.
    form: u8,
    reg: usize,
    rm: usize,
    /// Address of the operand in memory, and from one row to the next.
    at: usize,
    stride: usize,
    len: i64,
}

/// # Safety
/// The state must be that of a thread at an instruction.
unsafe fn decode(state: &[i64; 23]) -> Option<Decoded> {
    // In the order of their numbers in instructions.
    const NAMES: [libc::c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let value = |register: usize| state[NAMES[register] as usize] as usize;
    let code = state[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the caller vouches; no more is read than the instruction has.
    let byte = |at: usize| unsafe { *code.add(at) };
    if byte(0) != 0xc4 || byte(1) & 0x1f != 2 {
        return None;
    }
    let extended = |bit: u8| if byte(1) >> bit & 1 == 0 { 8 } else { 0 };
    let modrm = byte(4);
    let mut decoded = Decoded {
        prefix: byte(2) & 3,
        opcode: byte(3),
        third: usize::from(!byte(2) >> 3 & 15),
        form: modrm >> 6,
        reg: usize::from(modrm >> 3 & 7),
        rm: usize::from(modrm & 7),
        at: 0,
        stride: 0,
        len: 5,
    };
    if decoded.form == 3 {
        return Some(decoded);
    }
    let mut base = decoded.rm;
    if decoded.rm == 4 {
        let sib = byte(5);
        decoded.len += 1;
        base = usize::from(sib & 7);
        let index = usize::from(sib >> 3 & 7) + extended(6);
        decoded.stride = if index == 4 { 0 } else { value(index) << (sib >> 6) };
    }
    if decoded.form == 0 && base == 5 {
        return None;
    }
    let at = decoded.len as usize;
    let (offset, bytes) = match decoded.form {
        0 => (0, 0),
        1 => (byte(at) as i8 as isize, 1),
        _ => (i32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]) as isize, 4),
    };
    decoded.at = value(base + extended(5)).wrapping_add_signed(offset);
    decoded.len += bytes;
    Some(decoded)
}

/// Does what the instruction does; how long it is, if it is one of those that are known.
///
/// # Safety
/// As [`decode`], and the instruction's operands must be valid.
unsafe fn play(state: &[i64; 23]) -> Option<i64> {
    // SAFETY: the caller vouches; registers are this thread's.
    unsafe {
        let code = decode(state)?;
        let registers = &mut *REGISTERS.with(UnsafeCell::get);
        let row = |row: usize| code.at.wrapping_add(row * code.stride) as *mut [u32; SIDE];
        match (code.opcode, code.prefix, code.form) {
            // LDTILECFG clears them; TILERELEASE.
            (0x49, 0, _) => *registers = [[[0; SIDE]; SIDE]; 8],
            // TILEZERO.
            (0x49, 3, 3) => registers[code.reg] = [[0; SIDE]; SIDE],
            // TILELOADD.
            (0x4b, 3, _) => (0..SIDE).for_each(|i| registers[code.reg][i] = row(i).read_unaligned()),
            // TILESTORED.
            (0x4b, 2, _) => (0..SIDE).for_each(|i| row(i).write_unaligned(registers[code.reg][i])),
            // TDPBF16PS.
            (0x5c, 2, 3) => multiply(registers, code.reg, code.rm, code.third),
            _ => return None,
        }
        Some(code.len)
    }
}

/// Adds the products of a tile of rows of pairs and a tile of pairs of rows to a tile of sums: the first values of all pairs are added up,
/// and the second ones, then both, and then what was there.
fn multiply(registers: &mut Registers, sums: usize, rows: usize, columns: usize) {
    let normal = |value: f32| if value.abs() < f32::MIN_POSITIVE { 0.0 * value } else { value };
    let second = |pair: u32| normal(f32::from_bits(pair & 0xffff_0000));
    let first = |pair: u32| normal(f32::from_bits(pair << 16));
    for i in 0..SIDE {
        let mut added = [[0.0f32; SIDE]; 2];
        for (a, b) in registers[rows][i].into_iter().zip(registers[columns]) {
            for (j, b) in b.into_iter().enumerate() {
                // A product of two values of 8 digits is exact.
                added[0][j] = normal(added[0][j] + first(a) * first(b));
                added[1][j] = normal(added[1][j] + second(a) * second(b));
            }
        }
        for (j, sum) in registers[sums][i].iter_mut().enumerate() {
            let before = normal(f32::from_bits(*sum));
            *sum = normal(before + normal(added[0][j] + added[1][j])).to_bits();
        }
    }
}
