//! NVRTC: machine code that says which text it was, with which constants.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

/// What a program is made of, and what comes out.
pub(crate) struct Program {
    source: String,
    code: Vec<u8>,
}

type Handle = *mut Program;

unsafe fn text(s: *const c_char) -> String {
    unsafe { CStr::from_ptr(s) }.to_str().unwrap().to_owned()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    unsafe { (*major, *minor) = (13, 0) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    made: *mut Handle,
    source: *const c_char,
    _name: *const c_char,
    headers: c_int,
    contents: *const *const c_char,
    names: *const *const c_char,
) -> c_int {
    let names: Vec<String> = (0..headers as usize).map(|i| unsafe { text(*names.add(i)) }).collect();
    let whole = (0..headers as usize).all(|i| !unsafe { text(*contents.add(i)) }.is_empty());
    if !whole || !names.contains(&"metal_stdlib".to_owned()) {
        return 3; // NVRTC_ERROR_INVALID_INPUT
    }
    unsafe { *made = Box::into_raw(Box::new(Program { source: text(source), code: Vec::new() })) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: Handle,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let program = unsafe { &mut *program };
    let options: Vec<String> = (0..count as usize).map(|i| unsafe { text(*options.add(i)) }).collect();
    // The measurement of the GPU's limits, which launches of straw do nothing of.
    if program.source.contains(" multiply(") {
        program.code = b"straw measurement\0".to_vec();
        return 0;
    }
    let has = |option: &str| options.iter().any(|o| o == option);
    if !has("--fmad=false") || !has("--std=c++17") || !options.iter().any(|o| o.starts_with("-I")) {
        return 5; // NVRTC_ERROR_INVALID_OPTION
    }
    let defined =
        |name: &str| options.iter().find_map(|o| o.strip_prefix(&format!("-D{name}="))).map(str::to_owned);
    let constants: BTreeMap<usize, String> =
        (0..64).filter_map(|i| Some((i, defined(&format!("FUNCTION_CONSTANT_{i}"))?))).collect();
    let symbol = program.source.split("__launch_bounds__(LAUNCH_THREADS) ").nth(1).unwrap();
    let name = symbol.split("__cuda(").next().unwrap();
    let activation = program.source.split("#define ACT_IS_").nth(1).unwrap().split('\n').next().unwrap();
    let words: Vec<String> = constants.into_values().collect();
    let threads = defined("LAUNCH_THREADS").unwrap();
    program.code = format!("straw {name} {activation} {threads} {}\0", words.join(",")).into_bytes();
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(_: Handle, size: *mut usize) -> c_int {
    unsafe { *size = 1 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(_: Handle, log: *mut c_char) -> c_int {
    unsafe { *log = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: Handle, size: *mut usize) -> c_int {
    unsafe { *size = (*program).code.len() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: Handle, code: *mut u8) -> c_int {
    let made = unsafe { &(*program).code };
    unsafe { code.copy_from_nonoverlapping(made.as_ptr(), made.len()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut Handle) -> c_int {
    drop(unsafe { Box::from_raw(*program) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetErrorString(_: c_int) -> *const c_char {
    c"refused by the compiler of straw".as_ptr()
}
