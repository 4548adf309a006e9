//! The driver's mutexes: whoever finds one taken looks again for a little while before it sleeps.
//!
//! The driver has one lock for a context, which it takes with pthread_mutex_lock and keeps for one or two
//! microseconds a call. glibc's sleeps at once where that is taken, and then each thread that hands the lock
//! on has a sleeper to wake, which takes longer than what the lock was taken for.
//!
//! What an executable defines goes before what its libraries do (System V ABI, "Shared Object Dependencies"), and so
//! the driver's library, which is loaded later, finds the function here in place of glibc's. Rust's locks
//! and glibc's own do not come by here.
//!
//! It stands in the program, not in the engine's crate: what defines a name of glibc's changes the whole process,
//! and only a program may choose that. `OPENMPS_DRIVER_MUTEX=sleep` has threads wait as glibc's do.
//!
//! Owns for how long is looked. Called by the driver and the libraries that it brings. Must not know which
//! of their mutexes it is given.

use std::ffi::{OsStr, c_int};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::pthread_mutex_t;

/// For how long a thread looks again. Some turns of eight that want the context's lock, and no longer than a
/// thread takes that is woken.
const MOST: Duration = Duration::from_micros(20);

/// Between two looks, so that whoever has the mutex is not held up by them: some tenths of a microsecond.
const PAUSES: u32 = 8;

/// The variable that says how a thread waits: `sleep` for glibc's way, anything else for the way here.
const VARIABLE: &str = "OPENMPS_DRIVER_MUTEX";

/// How a thread waits for a mutex that another has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// It looks again for a while, then sleeps.
    SpinThenSleep,
    /// It sleeps at once, as glibc has it.
    Sleep,
}

impl Waiting {
    /// What the environment asks for.
    fn from_variable(value: Option<&OsStr>) -> Self {
        match value {
            Some(value) if value == "sleep" => Self::Sleep,
            _ => Self::SpinThenSleep,
        }
    }

    /// As the environment was at the process' first mutex.
    fn of_process() -> Self {
        static ASKED: LazyLock<Waiting> =
            LazyLock::new(|| Waiting::from_variable(std::env::var_os(VARIABLE).as_deref()));
        *ASKED
    }
}

/// As POSIX has it (pthread_mutex_lock(3p)), and in all its kinds.
///
/// # Safety
/// As of glibc's: the mutex is initialised, and stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller keeps that the mutex is initialised and stays.
    unsafe { lock(mutex, Waiting::of_process()) }
}

/// Locks a mutex, and waits for it in one of the ways.
///
/// # Safety
/// The mutex is initialised, and stays.
unsafe fn lock(mutex: *mut pthread_mutex_t, waiting: Waiting) -> c_int {
    type Lock = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
    static GLIBC: LazyLock<Lock> = LazyLock::new(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_mutex_lock".as_ptr()) };
        assert!(!found.is_null(), "glibc has pthread_mutex_lock");
        // SAFETY: POSIX gives the function of this name this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, Lock>(found) }
    });
    let tried = match waiting {
        Waiting::Sleep => None,
        Waiting::SpinThenSleep => try_for_a_while(|| {
            // SAFETY: the caller keeps that the mutex is initialised and stays.
            let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
            (tried != libc::EBUSY).then_some(tried)
        }),
    };
    // SAFETY: the function is glibc's own, and the caller's mutex is initialised and stays.
    tried.unwrap_or_else(|| unsafe { GLIBC(mutex) })
}

/// Looks until there is an answer, for as long as that is worth it and a processor is to spare.
fn try_for_a_while(mut look: impl FnMut() -> Option<c_int>) -> Option<c_int> {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    /// Threads that look again.
    static LOOKING: AtomicUsize = AtomicUsize::new(0);

    if let Some(answer) = look() {
        return Some(answer);
    }
    let mut answer = None;
    // One processor is left to whoever has the mutex.
    if LOOKING.fetch_add(1, Ordering::Relaxed) + 1 < *PROCESSORS {
        let began = Instant::now();
        while answer.is_none() && began.elapsed() < MOST {
            for _ in 0..PAUSES {
                std::hint::spin_loop();
            }
            answer = look();
        }
    }
    LOOKING.fetch_sub(1, Ordering::Relaxed);
    answer
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;
    use std::sync::Barrier;

    use super::*;

    /// Both ways to wait: what a mutex promises holds with either.
    const WAYS: [Waiting; 2] = [Waiting::SpinThenSleep, Waiting::Sleep];

    /// A mutex of a kind, as C has it, and how it is waited for.
    struct Mutex(UnsafeCell<pthread_mutex_t>, Waiting);

    // SAFETY: only the functions of pthreads reach what is in it, which any thread may call at any time.
    unsafe impl Sync for Mutex {}

    impl Mutex {
        fn new(kind: c_int, waiting: Waiting) -> Self {
            let initial = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
            let mutex = Self(initial, waiting);
            let mut attributes = MaybeUninit::uninit();
            // SAFETY: the attributes are initialised by the first call, and the mutex is by the last; nobody else has either.
            unsafe {
                libc::pthread_mutexattr_init(attributes.as_mut_ptr());
                libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), kind);
                libc::pthread_mutex_init(mutex.0.get(), attributes.as_ptr());
            }
            mutex
        }

        fn lock(&self) -> c_int {
            // SAFETY: the mutex was initialised by `new`, and `self` keeps it.
            unsafe { lock(self.0.get(), self.1) }
        }

        fn unlock(&self) -> c_int {
            // SAFETY: the mutex was initialised by `new`, and `self` keeps it.
            unsafe { libc::pthread_mutex_unlock(self.0.get()) }
        }
    }

    /// The processor's time that this thread has had.
    fn processor_time() -> Duration {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the clock writes it.
        let time = unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr());
            time.assume_init()
        };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn only_the_word_sleep_asks_for_glibcs_way() {
        let asked = |text: &str| Waiting::from_variable(Some(OsStr::new(text)));
        assert_eq!(asked("sleep"), Waiting::Sleep);
        assert_eq!(asked("spin"), Waiting::SpinThenSleep);
        assert_eq!(asked(""), Waiting::SpinThenSleep);
        assert_eq!(Waiting::from_variable(None), Waiting::SpinThenSleep);
    }

    #[test]
    fn one_thread_at_a_time_has_it() {
        struct Count(UnsafeCell<u64>);
        // SAFETY: only the thread that has the mutex touches it.
        unsafe impl Sync for Count {}
        for waiting in WAYS {
            let mutex = Mutex::new(libc::PTHREAD_MUTEX_RECURSIVE, waiting);
            let count = Count(UnsafeCell::new(0));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let count = &count;
                        for _ in 0..20_000 {
                            assert_eq!(mutex.lock(), 0);
                            // SAFETY: this thread has the mutex, and only who has it touches the count.
                            unsafe { *count.0.get() += 1 };
                            assert_eq!(mutex.unlock(), 0);
                        }
                    });
                }
            });
            assert_eq!(count.0.into_inner(), 80_000, "{waiting:?}");
        }
    }

    #[test]
    fn its_kind_counts() {
        for waiting in WAYS {
            let recursive = Mutex::new(libc::PTHREAD_MUTEX_RECURSIVE, waiting);
            assert_eq!((recursive.lock(), recursive.lock()), (0, 0));
            assert_eq!((recursive.unlock(), recursive.unlock()), (0, 0));
            let checking = Mutex::new(libc::PTHREAD_MUTEX_ERRORCHECK, waiting);
            assert_eq!((checking.lock(), checking.lock()), (0, libc::EDEADLK));
            assert_eq!((checking.unlock(), checking.unlock()), (0, libc::EPERM));
        }
    }

    #[test]
    fn who_has_to_wait_for_long_sleeps() {
        let long = Duration::from_millis(300);
        for waiting in WAYS {
            let mutex = Mutex::new(libc::PTHREAD_MUTEX_NORMAL, waiting);
            let taken = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    mutex.lock();
                    taken.wait();
                    std::thread::sleep(long);
                    mutex.unlock();
                });
                taken.wait();
                let before = processor_time();
                assert_eq!(mutex.lock(), 0);
                assert!(processor_time() - before < long / 10, "{waiting:?}");
                mutex.unlock();
            });
        }
    }
}
