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
//! Owns for how long is looked. Called by the driver and the libraries that it brings. Must not know which
//! of their mutexes it is given.

use std::ffi::c_int;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::pthread_mutex_t;

/// For how long a thread looks again. Some turns of eight that want the context's lock, and no longer than a
/// thread takes that is woken.
const MOST: Duration = Duration::from_micros(20);

/// Between two looks, so that whoever has the mutex is not held up by them: some tenths of a microsecond.
const PAUSES: u32 = 8;

/// As POSIX has it (pthread_mutex_lock(3p)), and in all its kinds.
///
/// # Safety
/// As of glibc's: the mutex is initialised, and stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    type Lock = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
    static GLIBC: LazyLock<Lock> = LazyLock::new(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_mutex_lock".as_ptr()) };
        assert!(!found.is_null(), "glibc has pthread_mutex_lock");
        // SAFETY: POSIX gives the function of this name this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, Lock>(found) }
    });
    let tried = try_for_a_while(|| {
        // SAFETY: the caller keeps that the mutex is initialised and stays.
        let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
        (tried != libc::EBUSY).then_some(tried)
    });
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

    /// A mutex of a kind, as C has it.
    struct Mutex(UnsafeCell<pthread_mutex_t>);

    // SAFETY: only the functions of pthreads reach what is in it, which any thread may call at any time.
    unsafe impl Sync for Mutex {}

    impl Mutex {
        fn new(kind: c_int) -> Self {
            let mutex = Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
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
            // SAFETY: initialised by `new`.
            unsafe { pthread_mutex_lock(self.0.get()) }
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
    fn one_thread_at_a_time_has_it() {
        struct Count(UnsafeCell<u64>);
        // SAFETY: only who has the mutex touches it.
        unsafe impl Sync for Count {}
        let (mutex, count) = (
            Mutex::new(libc::PTHREAD_MUTEX_RECURSIVE),
            Count(UnsafeCell::new(0)),
        );
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let count = &count;
                    for _ in 0..20_000 {
                        assert_eq!(mutex.lock(), 0);
                        // SAFETY: the mutex is ours.
                        unsafe { *count.0.get() += 1 };
                        assert_eq!(mutex.unlock(), 0);
                    }
                });
            }
        });
        assert_eq!(count.0.into_inner(), 80_000);
    }

    #[test]
    fn its_kind_counts() {
        let recursive = Mutex::new(libc::PTHREAD_MUTEX_RECURSIVE);
        assert_eq!((recursive.lock(), recursive.lock()), (0, 0));
        assert_eq!((recursive.unlock(), recursive.unlock()), (0, 0));
        let checking = Mutex::new(libc::PTHREAD_MUTEX_ERRORCHECK);
        assert_eq!((checking.lock(), checking.lock()), (0, libc::EDEADLK));
        assert_eq!((checking.unlock(), checking.unlock()), (0, libc::EPERM));
    }

    #[test]
    fn who_has_to_wait_for_long_sleeps() {
        let (mutex, taken) = (Mutex::new(libc::PTHREAD_MUTEX_NORMAL), Barrier::new(2));
        let long = Duration::from_millis(300);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mutex.lock();
                taken.wait();
                std::thread::sleep(long);
                mutex.unlock();
            });
            taken.wait();
            let (began, before) = (Instant::now(), processor_time());
            assert_eq!(mutex.lock(), 0);
            assert!(began.elapsed() > long / 2);
            assert!(processor_time() - before < long / 10);
            mutex.unlock();
        });
    }
}
