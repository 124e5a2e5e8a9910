//! Which GPUs there are, and what is missing where there is none.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys;

use crate::driver::{CudaError, cuda};
use crate::pack::Pack;

/// The oldest generation that the texts run on: tensor cores with bfloat16 (Ampere).
pub const LEAST_CAPABILITY: (u32, u32) = (8, 0);

/// The oldest driver's API whose functions are used, as the driver counts: 12.0.
const LEAST_DRIVER: i32 = 12_000;

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// No driver.
    #[error(
        "the driver's library (libcuda.so.1, or nvcuda.dll) is not on this machine: install NVIDIA's driver, and in a container \
         start it with the GPUs (--gpus all)"
    )]
    Driver,
    /// A driver that is too old.
    #[error("the driver offers CUDA {}.{}; wanted 12.0 or newer: update NVIDIA's driver", found / 1000, found % 1000 / 10)]
    OldDriver {
        /// As the driver counts: 11080 is 11.8.
        found: i32,
    },
    /// The driver is there and does not start.
    #[error("the driver does not start: {0}; `nvidia-smi` says more")]
    Start(String),
    /// No device of that number.
    #[error("there is no CUDA device {asked}: the driver shows {found}{}", numbers(*found))]
    Ordinal {
        /// The number asked for.
        asked: usize,
        /// Devices that there are.
        found: usize,
    },
    /// A GPU that is too old.
    #[error(
        "{name} has compute capability {}.{}; wanted {}.{} (Ampere) or newer",
        found.0, found.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1
    )]
    Capability {
        /// The GPU.
        name: String,
        /// Its generation.
        found: (u32, u32),
    },
    /// No compiler for the kernels.
    #[error(
        "NVRTC, which compiles the kernels, is not on this machine (looked for {looked}): install the CUDA toolkit, or \
         `pip install nvidia-cuda-nvrtc nvidia-cuda-runtime` and name its folder (site-packages/nvidia/cu13) in CUDA_HOME"
    )]
    Nvrtc {
        /// Names and folders that were tried.
        looked: String,
    },
    /// No headers for the compiler.
    #[error(
        "NVRTC is at {nvrtc}, and CUDA's header cuda_fp16.h is not beside it (looked in {looked}): install the CUDA toolkit, or \
         `pip install nvidia-cuda-runtime` beside nvidia-cuda-nvrtc and name the folder in CUDA_HOME"
    )]
    Headers {
        /// The library that was found.
        nvrtc: String,
        /// Folders that were tried.
        looked: String,
    },
}

fn numbers(found: usize) -> String {
    match found {
        0 => " devices (CUDA_VISIBLE_DEVICES may hide them)".to_owned(),
        1 => " device, number 0".to_owned(),
        n => format!(" devices, numbers 0 to {}", n - 1),
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its number.
    pub ordinal: usize,
    /// `NVIDIA H200`.
    pub name: String,
    /// Its generation: (9, 0).
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub cores: usize,
    /// Bytes of memory.
    pub memory: usize,
    /// Nominal bandwidth in GB/s; 0 where the driver does not say.
    pub bandwidth: f64,
    /// What its driver offers: (13, 0).
    pub driver: (u32, u32),
}

impl Found {
    /// The architecture that the kernels are compiled for: with the features of its own where a generation has such.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        let own = if matches!((major, minor), (9, 0) | (10, 0) | (10, 3)) { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }

    /// The machine code in this program for this GPU, where its driver loads it.
    pub(crate) fn pack(&self) -> Option<&'static Pack> {
        Pack::embedded().filter(|pack| pack.suits(self.driver))
    }

    /// For people, what machine code this program carries for this GPU: `142 kernels for sm_90a in this program (NVRTC 13.0)`.
    pub fn embedded(&self) -> String {
        if let Some(damage) = Pack::damage() {
            return format!("the machine code in this program is damaged and not used ({damage})");
        }
        said(Pack::embedded(), &self.architecture(), self.driver)
    }
}

fn said(pack: Option<&Pack>, architecture: &str, driver: (u32, u32)) -> String {
    let kernels = pack.map_or(0, |pack| pack.kernels(architecture));
    match pack {
        Some(pack) if kernels > 0 && pack.suits(driver) => {
            format!("{kernels} kernels for {architecture} in this program (NVRTC {})", pack.nvrtc())
        }
        Some(pack) if kernels > 0 => format!(
            "{kernels} kernels for {architecture} in this program are of CUDA {}, which this driver of {}.{} does not load: update it, \
             or NVRTC compiles",
            pack.nvrtc(),
            driver.0,
            driver.1
        ),
        _ => format!("no kernels for {architecture} in this program, NVRTC compiles them"),
    }
}

/// Whether the driver's library can be loaded at all; the functions of `cudarc` panic where it cannot.
fn is_driver_there() -> bool {
    // SAFETY: loads a library by the names that NVIDIA gives its driver; its initialisation is the driver's own.
    unsafe { sys::is_culib_present() }
}

fn start() -> Result<(u32, u32), Missing> {
    if !is_driver_there() {
        return Err(Missing::Driver);
    }
    let mut version = 0;
    // SAFETY: writes a number; needs no initialisation.
    let asked = unsafe { cuda!(cuDriverGetVersion(&raw mut version)) };
    asked.map_err(|e| Missing::Start(e.to_string()))?;
    if version < LEAST_DRIVER {
        return Err(Missing::OldDriver { found: version });
    }
    // SAFETY: may be called any number of times.
    match unsafe { cuda!(cuInit(0)) } {
        Ok(()) => Ok((version as u32 / 1000, version as u32 % 1000 / 10)),
        Err(error) if error.name == "CUDA_ERROR_NO_DEVICE" => Err(Missing::Ordinal { asked: 0, found: 0 }),
        Err(error) => Err(Missing::Start(error.to_string())),
    }
}

/// Every GPU that the driver shows.
///
/// # Errors
/// Says what is missing where the driver does not work or shows none.
pub fn devices() -> Result<Vec<Found>, Missing> {
    let driver = start()?;
    let failed = |error: CudaError| Missing::Start(error.to_string());
    let mut count = 0;
    // SAFETY: writes a number.
    unsafe { cuda!(cuDeviceGetCount(&raw mut count)) }.map_err(failed)?;
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return Err(Missing::Ordinal { asked: 0, found: 0 });
    }
    (0..count).map(|ordinal| describe(ordinal, driver).map_err(failed)).collect()
}

/// A GPU that the kernels run on, by its number.
pub fn find(ordinal: usize) -> Result<Found, Missing> {
    let all = devices()?;
    let count = all.len();
    let found = all.into_iter().nth(ordinal).ok_or(Missing::Ordinal { asked: ordinal, found: count })?;
    if found.capability < LEAST_CAPABILITY {
        return Err(Missing::Capability { name: found.name, found: found.capability });
    }
    Ok(found)
}

fn describe(ordinal: usize, driver: (u32, u32)) -> Result<Found, CudaError> {
    use sys::CUdevice_attribute as Attribute;
    let (mut device, mut memory) = (0, 0);
    let mut name = [0; 256];
    // SAFETY: writes the handle, at most as many characters as there is room for, and a number.
    unsafe {
        cuda!(cuDeviceGet(&raw mut device, ordinal as c_int))?;
        cuda!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        cuda!(cuDeviceTotalMem_v2(&raw mut memory, device))?;
    }
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: writes a number.
        unsafe { cuda!(cuDeviceGetAttribute(&raw mut value, which, device)) }.map(|()| value as u32)
    };
    // Double data rate: two transfers a clock. Newer drivers may say nothing of clocks.
    let clock = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
    let width = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
    // SAFETY: the driver ends the name with a zero, inside of the array.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(Found {
        ordinal,
        name,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        cores: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        memory,
        bandwidth: 2.0 * f64::from(clock) * 1e3 * f64::from(width) / 8.0 / 1e9,
        driver,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(capability: (u32, u32)) -> Found {
        let name = "GPU".to_owned();
        Found { ordinal: 0, name, capability, cores: 1, memory: 1, bandwidth: 0.0, driver: (13, 0) }
    }

    #[test]
    fn kernels_are_compiled_for_what_is_there() {
        let names = [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)].map(|c| found(c).architecture());
        assert_eq!(names, ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"]);
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let says = |missing: Missing, words: &[&str]| {
            let text = missing.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        says(Missing::Driver, &["libcuda.so.1", "install NVIDIA's driver"]);
        says(Missing::OldDriver { found: 11_080 }, &["CUDA 11.8", "wanted 12.0"]);
        says(Missing::Ordinal { asked: 3, found: 2 }, &["no CUDA device 3", "numbers 0 to 1"]);
        says(Missing::Ordinal { asked: 0, found: 0 }, &["shows 0 devices", "CUDA_VISIBLE_DEVICES"]);
        let old = Missing::Capability { name: "GTX".into(), found: (6, 1) };
        says(old, &["GTX has compute capability 6.1", "wanted 8.0"]);
        says(Missing::Nvrtc { looked: "a, b".into() }, &["looked for a, b", "pip install", "CUDA_HOME"]);
    }

    #[test]
    fn what_the_program_carries_is_said_for_the_gpu_and_its_driver() {
        let mut packer = crate::pack::Packer::new("13.5");
        packer.add("sm_90a", "one", &[], b"code");
        packer.add("sm_90a", "two", &[], b"code");
        let pack = Pack::read(packer.finish()).unwrap();
        let cases = [
            (Some(&pack), "sm_90a", (13, 0), "2 kernels for sm_90a in this program (NVRTC 13.5)"),
            (Some(&pack), "sm_90a", (12, 8), "of CUDA 13.5, which this driver of 12.8 does not load"),
            (Some(&pack), "sm_80", (13, 0), "no kernels for sm_80"),
            (None, "sm_90a", (13, 0), "no kernels for sm_90a"),
        ];
        for (pack, architecture, driver, words) in cases {
            let text = said(pack, architecture, driver);
            assert!(text.contains(words), "{text}");
        }
    }

    /// Wherever tests run: a driver that is not there is an error and never a panic.
    #[test]
    fn looking_for_devices_never_panics() {
        match (devices(), find(usize::MAX)) {
            (Ok(all), Err(Missing::Ordinal { found, .. })) => assert_eq!(found, all.len()),
            (Err(one), Err(other)) => assert_eq!(one, other),
            other => panic!("{other:?}"),
        }
    }
}
