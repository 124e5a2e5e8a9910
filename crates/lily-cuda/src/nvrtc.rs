//! NVRTC: the compiler of the kernels' texts, loaded from where it is found.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::Library;
use lily_kernels::CUDA_HEADERS;

use crate::found::Missing;

/// Names of the library, newest first.
const NAMES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
};

/// Where a toolkit keeps its libraries, and its headers.
const LIBRARIES: &[&str] = &["lib64", "lib", "bin", "lib/x64"];
const HEADERS: &[&str] = &["include"];

/// A header of NVIDIA's that the texts include.
const HEADER: &str = "cuda_fp16.h";

/// Folders in which toolkits are installed without being asked where.
pub fn well_known_folders() -> Vec<PathBuf> {
    [
        "/usr/local/cuda",
        "/usr/local/cuda/targets/x86_64-linux",
        "/usr/local/cuda/targets/sbsa-linux",
        "/opt/cuda",
        "/usr",
    ]
    .map(PathBuf::from)
    .to_vec()
}

type Program = *mut c_void;
type Strings = *const *const c_char;

/// The functions that are used, with the types of `nvrtc.h`.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create:
        unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Strings, Strings) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    code_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    code: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    // Last: the functions are valid while it is loaded.
    _library: Library,
}

/// NVRTC with NVIDIA's headers.
pub struct Compiler {
    functions: Functions,
    /// `13.0`.
    version: String,
    include: PathBuf,
}

impl Compiler {
    /// Looks for NVRTC in these folders of toolkits, in order, then where the system's loader looks, then in
    /// [`well_known_folders`].
    ///
    /// # Errors
    /// [`Missing::Nvrtc`] or [`Missing::Headers`], with what was tried.
    pub fn find(toolkits: &[PathBuf]) -> Result<Self, Missing> {
        let in_folder = |folder: &PathBuf| {
            let folder = folder.clone();
            let paths = LIBRARIES.iter().flat_map(move |sub| {
                let folder = folder.join(sub);
                NAMES.iter().map(move |name| folder.join(name))
            });
            paths.filter(|path| path.is_file())
        };
        let known = well_known_folders();
        let chosen = toolkits.iter().flat_map(in_folder);
        let loader = NAMES.iter().map(PathBuf::from);
        let candidates: Vec<PathBuf> = chosen.chain(loader).chain(known.iter().flat_map(in_folder)).collect();
        let loaded = candidates.iter().find_map(|path| Some((path, Functions::load(path)?)));
        let Some((path, functions)) = loaded else {
            let folders = toolkits.iter().chain(&known).map(|f| f.display().to_string());
            let looked: Vec<String> = [NAMES.join(", ")].into_iter().chain(folders).collect();
            return Err(Missing::Nvrtc { looked: looked.join(", ") });
        };
        let library = loaded_from(path).unwrap_or_else(|| path.clone());
        let beside = library.parent().and_then(Path::parent).map(Path::to_path_buf);
        let folders: Vec<PathBuf> = beside.into_iter().chain(toolkits.iter().cloned()).chain(known).collect();
        let headers = folders.iter().flat_map(|f| HEADERS.iter().map(move |sub| f.join(sub)));
        let Some(include) = headers.clone().find(|folder| folder.join(HEADER).is_file()) else {
            let looked: Vec<String> = headers.map(|folder| folder.display().to_string()).collect();
            let nvrtc = library.display().to_string();
            return Err(Missing::Headers { nvrtc, looked: looked.join(", ") });
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { (functions.version)(&raw mut major, &raw mut minor) };
        Ok(Compiler { functions, version: format!("{major}.{minor}"), include })
    }

    /// `13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Machine code of a source that may include the headers of the shim and NVIDIA's; may be called on several threads.
    ///
    /// # Errors
    /// The compiler's log.
    pub fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>, String> {
        let text = |s: &str| CString::new(s).map_err(|_| "a text holds a zero byte".to_owned());
        let include = format!("-I{}", self.include.display());
        let options = options.iter().chain([&include]).map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let names = CUDA_HEADERS.iter().map(|h| text(h.0)).collect::<Result<Vec<_>, _>>()?;
        let headers = CUDA_HEADERS.iter().map(|h| text(h.1)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let source = text(source)?;
        let mut program = Running { functions: &self.functions, program: null_mut() };
        // SAFETY: all strings end with a zero and live to the end of this function, behind the program's.
        let made = unsafe {
            (self.functions.create)(
                &raw mut program.program,
                source.as_ptr(),
                null(),
                names.len() as c_int,
                pointers(&headers).as_ptr(),
                pointers(&names).as_ptr(),
            )
        };
        program.check("nvrtcCreateProgram", made)?;
        // SAFETY: as above.
        let compiled = unsafe {
            (self.functions.compile)(program.program, options.len() as c_int, pointers(&options).as_ptr())
        };
        if compiled != 0 {
            let reason = program.check("nvrtcCompileProgram", compiled).err().unwrap_or_default();
            return Err(format!("{reason}\n{}", program.log()));
        }
        program.code()
    }
}

/// A program of NVRTC.
struct Running<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Running<'_> {
    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: gives a constant string for every number.
        let text = unsafe { CStr::from_ptr((self.functions.error)(status)) };
        Err(format!("{call}: {}", text.to_string_lossy()))
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: writes a number, then as many bytes as that.
        unsafe {
            (self.functions.log_size)(self.program, &raw mut size);
            let mut log = vec![0u8; size.max(1)];
            (self.functions.log)(self.program, log.as_mut_ptr().cast());
            String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).into_owned()
        }
    }

    fn code(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: writes a number.
        let asked = unsafe { (self.functions.code_size)(self.program, &raw mut size) };
        self.check("nvrtcGetCUBINSize", asked)?;
        let mut code = vec![0u8; size];
        // SAFETY: writes as many bytes as it said.
        let got = unsafe { (self.functions.code)(self.program, code.as_mut_ptr().cast()) };
        self.check("nvrtcGetCUBIN", got)?;
        Ok(code)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: made by nvrtcCreateProgram, destroyed once.
            unsafe { (self.functions.destroy)(&raw mut self.program) };
        }
    }
}

impl Functions {
    fn load(path: &Path) -> Option<Self> {
        // SAFETY: a library that is called NVRTC, in a folder of the system or one that the user names; the types are those of
        // its header, which have not changed since CUDA 11.
        unsafe {
            let library = Library::new(path).ok()?;
            macro_rules! function {
                ($name:literal) => {
                    *library.get($name).ok()?
                };
            }
            Some(Functions {
                version: function!(b"nvrtcVersion"),
                create: function!(b"nvrtcCreateProgram"),
                compile: function!(b"nvrtcCompileProgram"),
                log_size: function!(b"nvrtcGetProgramLogSize"),
                log: function!(b"nvrtcGetProgramLog"),
                code_size: function!(b"nvrtcGetCUBINSize"),
                code: function!(b"nvrtcGetCUBIN"),
                destroy: function!(b"nvrtcDestroyProgram"),
                error: function!(b"nvrtcGetErrorString"),
                _library: library,
            })
        }
    }
}

/// Where the system's loader found a library that was asked for by its name alone, on Linux.
fn loaded_from(name: &Path) -> Option<PathBuf> {
    if name.is_absolute() {
        return Some(name.to_path_buf());
    }
    let name = name.file_name()?.to_str()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let stem = name.split(".so").next()?;
    let paths = maps.lines().filter_map(path);
    let same = |path: &String| {
        Path::new(path).file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{stem}.so")))
    };
    paths.into_iter().find(same).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_nvrtc_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        match Compiler::find(std::slice::from_ref(&path)) {
            Err(Missing::Nvrtc { looked }) => {
                assert!(looked.contains("libnvrtc.so.13") && looked.contains(&*path.to_string_lossy()));
            }
            Err(Missing::Headers { .. }) | Ok(_) => {} // this machine has one
            Err(other) => panic!("{other}"),
        }
    }

    /// A file of the right name that is no library is passed over.
    #[test]
    fn a_broken_library_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        std::fs::write(folder.path().join("lib").join(NAMES[0]), "no library").unwrap();
        let found = Compiler::find(&[folder.path().to_path_buf()]);
        assert!(!matches!(found, Err(Missing::Driver)));
        assert!(Functions::load(&folder.path().join("lib").join(NAMES[0])).is_none());
    }
}
