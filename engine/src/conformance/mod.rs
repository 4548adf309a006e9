//! What every engine must do, as tests that know nothing of any engine.
//!
//! An engine's own tests instantiate the whole suite, one `#[test]` a case:
//!
//! ```ignore
//! engine::conformance_suite!(|| MyEngine::new());
//! ```
//!
//! The factory is called once a case, and gives an engine. A case panics
//! when the engine is wrong. The kernels are PTX written by hand ([`kernels`]), so that engines with
//! and without a compiler see the same code. Cases that wait for something fail after [`rig::PATIENCE`],
//! which is generous: no case says how fast an engine is.

pub mod arrays;
pub mod copies;
pub mod faults;
pub mod images;
pub mod kernels;
pub mod launches;
pub mod memory;
pub mod memory_model;
pub mod progress;
pub mod rig;
pub mod runs;
pub mod shares;
pub mod streams;

/// Hands every case to the macro `$callback`, by modules, after what is in the parentheses.
#[macro_export]
macro_rules! for_each_case {
    ($callback:path, ($($head:tt)*)) => {
        $callback! { $($head)*
            memory: attaching_and_detaching_leaves_nothing committed_memory_is_zeroed_again
                lent_memory_keeps_what_is_in_it windows_come_and_go a_shared_block_outlives_its_owner exported_memory_is_reached_in_part physical_memory_is_seen_wherever_it_is_mapped
                clients_cannot_reach_each_other looks_into_memory_are_checked what_is_not_committed_is_refused
                ranges_that_make_no_sense_are_refused a_device_has_only_so_much;
            arrays: boxes_go_in_and_out arrays_that_make_no_sense_are_refused
                kernels_read_textures_and_write_surfaces textures_that_make_no_sense_are_refused
                arrays_give_their_memory_back textures_go_with_their_array parts_are_linked links_that_fail_say_why;
            copies: rows_of_every_size_in_every_direction planes_with_pitches
                large_copies_and_fills fills_of_every_element writes_from_the_record
                extents_that_overflow_are_refused misplaced_sides_are_refused
                nothing_to_copy_is_no_error;
            streams: operations_keep_their_order streams_do_not_wait_for_each_other
                events_keep_time destroyed_streams_take_nothing slots_can_be_used_again
                forty_streams_at_once unknown_handles_are_refused
                a_destroyed_context_reports_all_that_it_had;
            images: an_image_describes_itself what_is_no_image_is_refused
                wrong_ptx_is_refused_with_its_line variables_have_their_first_values
                modules_have_variables_of_their_own
                an_image_that_several_have_counts_once variables_lie_in_cleared_memory
                managed_variables_are_the_hosts_too;
            launches: saxpy a_green_context_runs_its_homes_kernels a_burst_keeps_its_order what_ran_is_told_of
                each_of_a_burst_is_told_of every_block_and_thread_runs_once launches_that_ask_too_much_are_refused
                attributes_are_never_dropped an_unloaded_module_is_kept_for_its_grids
                shared_memory_beyond_the_default_must_be_asked_for
                a_cooperative_grid_meets_at_a_barrier what_kernels_print_comes_to_their_client;
            runs: a_run_does_what_its_launches_do_in_their_order a_run_with_something_wrong_does_nothing
                a_run_whose_module_is_unloaded_is_none;
            progress: a_kernel_waits_for_a_copy a_kernel_waits_for_another_stream
                a_block_waits_for_a_later_block forty_kernels_wait_in_a_ring
                clients_share_what_endless_kernels_leave dropping_a_client_ends_its_kernels
                destroying_a_context_ends_its_kernels a_storm_of_clients_leaves_nothing;
            memory_model: messages_arrive_whole messages_are_passed_on_whole buffered_stores_are_seen_behind_fences
                loads_do_not_see_what_follows_them readers_agree_about_two_writers one_word_has_one_order
                stores_behind_fences_have_one_order every_atomic_has_its_turn
                buffered_stores_are_seen_at_every_turn messages_are_whole_at_every_turn
                loads_are_before_what_follows_them_at_every_turn readers_agree_at_every_turn
                sums_of_many_turns_lose_nothing;
            shares: work_is_done_by_percentage groups_have_their_part_together
                reserved_multiprocessors_are_nobody_elses shares_that_make_no_sense_are_refused
                what_waits_goes_on what_never_ends_keeps_nobody what_is_reserved_and_busy_keeps_nobody
                a_storm_of_shares_leaves_nothing;
            faults: an_illegal_address_ends_its_context_only a_neighbour_is_out_of_reach
                a_trap_is_a_launch_failure a_misaligned_access_is_named
                queued_work_fails_in_order a_fault_within_a_run_is_what_comes_of_it faults_come_to_every_thread_that_makes_them;
        }
    };
}

/// Makes one `#[test]` of every case, for the engines that a factory makes.
#[macro_export]
macro_rules! conformance_suite {
    (@cases $factory:expr; $($module:ident: $($case:ident)*;)*) => {$(
        mod $module {
            #[allow(unused_imports, reason = "the factory names what its file has")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    let engine = ($factory)();
                    $crate::conformance::$module::$case(&engine);
                }
            )*
        }
    )*};
    ($factory:expr) => {
        $crate::for_each_case! { $crate::conformance_suite, (@cases $factory;) }
    };
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its module and name.
    pub name: &'static str,
    /// Panics when the engine is wrong.
    pub run: fn(&dyn crate::Engine),
}

macro_rules! list {
    ($($module:ident: $($case:ident)*;)*) => {
        /// Every case, for programs that run them one by one.
        pub const CASES: &[Case] = &[$($(Case {
            name: concat!(stringify!($module), "::", stringify!($case)),
            run: $module::$case,
        },)*)*];
    };
}

crate::for_each_case! { list, () }
