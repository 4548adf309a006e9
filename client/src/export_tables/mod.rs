//! The private tables that cuGetExportTable hands out.
//!
//! CUDA runtimes and NVIDIA's libraries talk to the driver through arrays of functions that no header
//! declares, besides the public functions. This folder owns those arrays, what runtimes keep with a
//! context ([`storage`]), the self-test ([`integrity`]) and NVRTC's cache ([`compile_cache`]). What they
//! need of the rest of the client is in [`client_access`], and nothing else of the client is known here.
//! Names of tables are ZLUDA's, or ours (T_…, ERROR_LOG, COMPILE_CACHE).
//!
//! Called by `exports::entry_points` for cuGetExportTable.

mod client_access;
mod compile_cache;
mod entries;
mod integrity;
mod md2;
mod name;
mod storage;
mod table;
#[cfg(test)]
mod tests;

use std::ffi::c_void;

use crate::log::log;
use name::Name;
use table::{Table, unserved_slots};

/// A UUID in memory order, as it is written.
type Uuid = u128;

/// Every table that is served.
static SERVED: [(Uuid, &Table); Name::ALL.len()] = [
    (0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9, &CUDART_INTERFACE),
    (0xa094798c_2e74_2e74_93f2_0800200c0a66, &HOOKS),
    (0x42d85a81_23f6_cb47_8298_f6e78a3aecdc, &TOOLS_TLS),
    (
        0xc693336e_1121_df11_a8c3_68f355d89593,
        &CONTEXT_LOCAL_STORAGE,
    ),
    (0xd4082055_bde6_704b_8d34_ba123c66e1f2, &INTEGRITY_CHECK),
    (0x263e8860_7cd2_6143_92f6_bbd5006dfa7e, &CONTEXT_CHECKS),
    (0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9, &ERROR_LOG),
    (0x21318c60_9714_3248_8ca6_41ff7324c8f2, &T_21318C60),
    (0x1734dc26_800d_4745_8726_c0f1e7dd8bca, &T_1734DC26),
    (0x6e163fbe_b958_444d_835c_e182aff1991e, &T_6E163FBE),
    (0xda9151d3_3ae6_cc41_a5c0_4f26d533e328, &COMPILE_CACHE),
];

/// Tables that are known and refused: nobody asks for them.
static REFUSED: [(Uuid, &str); 4] = [
    (0x0ca50b8c_1004_929a_89a7_d0df10e77286, "CTX_CREATE_BYPASS"),
    (0xb10541e1_f7c7_c74a_9f64_f223be99f1e2, "DEVICE_EXTENDED_RT"),
    (0x195bcbf4_d67d_024a_acc5_1d29cea631ae, "HEAP_ACCESS"),
    (0xdd9e98a4_f410_4844_99b0_e2aeb7b432b5, "HYBRID_CUDART"),
];

static CUDART_INTERFACE: Table = Table::new(unserved_slots!(Name::CudartInterface))
    .of_slots(13)
    .slot(1, entries::load_module as *const c_void)
    .slot(2, entries::primary_context as *const c_void)
    .slot(6, entries::load_module as *const c_void)
    .slot(7, entries::unregister as *const c_void)
    .slot(8, entries::load_module_of_header as *const c_void)
    .slot(10, std::ptr::null())
    .slot(12, entries::load_compilers as *const c_void);

static HOOKS: Table = Table::new(unserved_slots!(Name::Hooks))
    .of_slots(7)
    .slot(2, entries::hooks_first as *const c_void)
    .slot(6, entries::hooks_second as *const c_void);

static TOOLS_TLS: Table = Table::new(unserved_slots!(Name::ToolsTls))
    .of_slots(3)
    .slot(2, entries::tools_context as *const c_void);

/// The one table that has no size: its first slot is a function.
static CONTEXT_LOCAL_STORAGE: Table = Table::new(unserved_slots!(Name::ContextLocalStorage))
    .slot(0, storage::put as *const c_void)
    .slot(1, storage::delete as *const c_void)
    .slot(2, storage::get as *const c_void);

static INTEGRITY_CHECK: Table = Table::new(unserved_slots!(Name::IntegrityCheck))
    .of_slots(3)
    .slot(1, entries::check_integrity as *const c_void);

static CONTEXT_CHECKS: Table = Table::new(unserved_slots!(Name::ContextChecks))
    .of_slots(15)
    .slot(2, entries::check_context as *const c_void)
    .slot(3, entries::check_process as *const c_void);

static ERROR_LOG: Table = Table::new(unserved_slots!(Name::ErrorLog))
    .of_slots(3)
    .slot(1, entries::report_error as *const c_void)
    .slot(2, entries::enable_errors as *const c_void);

static T_21318C60: Table = Table::new(unserved_slots!(Name::T_21318C60))
    .of_slots(93)
    .slot(4, entries::context_id as *const c_void)
    .slot(39, entries::stream_id as *const c_void)
    .slot(51, entries::stream_object as *const c_void);

/// cuBLASLt asks slot 4 for two handles, and does without when it is not served.
static T_1734DC26: Table = Table::new(unserved_slots!(Name::T_1734DC26)).of_slots(17);

static T_6E163FBE: Table = Table::new(unserved_slots!(Name::T_6E163FBE))
    .of_slots(99)
    .slot(7, entries::for_each_function as *const c_void);

static COMPILE_CACHE: Table = Table::new(unserved_slots!(Name::CompileCache))
    .of_slots(7)
    .slot(1, compile_cache::open as *const c_void)
    .slot(2, compile_cache::close as *const c_void)
    .slot(3, compile_cache::query as *const c_void)
    .slot(4, compile_cache::store as *const c_void)
    .slot(6, compile_cache::release as *const c_void);

/// The table with this UUID, given in memory order. It never moves, and may be asked for before
/// cuInit.
pub(crate) fn get(uuid: &[u8; 16]) -> Option<*const c_void> {
    let uuid = Uuid::from_be_bytes(*uuid);
    if let Some((_, table)) = SERVED.iter().find(|(served, _)| *served == uuid) {
        return Some(table.address());
    }
    match REFUSED.iter().find(|(refused, _)| *refused == uuid) {
        Some((_, name)) => log!("private table {name} was asked for and is refused"),
        None => log!("private table {uuid:032x} was asked for and is not known"),
    }
    None
}
