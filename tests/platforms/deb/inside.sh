#!/bin/sh
# What an administrator does with the package on a fresh Debian with systemd; run as root in a container of
# its own, which goes away. Says `fine: …` after each part, and ends at the first thing that is wrong.
#   inside.sh PACKAGE LIBRARY_PROGRAM
set -eu
package=$1 program=$2
export LC_ALL=C XDG_RUNTIME_DIR=/run/user

# What it does goes to a file, of which the end is shown when something is wrong.
exec 2> /run/trace
set -x
trap '[ $? = 0 ] || { set +x; tail -n 8 /run/trace; }' EXIT

fail() {
    echo "wrong: $*"
    journalctl --no-pager -n 20 || true
    exit 1
}

wait_for() { # what, then a command
    what=$1
    shift
    for _ in $(seq 300); do
        if "$@" > /dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    fail "$what"
}

files() {
    # Not what dpkg and systemd write of themselves, nor what is mounted.
    find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /var/lib/dpkg -o -path /var/log/journal \
        -o -path /var/log/dpkg.log -o -path '/etc/sub?id-' -o -path /var/cache/ldconfig -o -path /var/lib/systemd \
        -o -path '/tmp/systemd-*' -o -path '/var/tmp/systemd-*' \) -prune -o -print | sort
}

mkdir -p "$XDG_RUNTIME_DIR"
files > /run/before

dpkg -i "$package" > /run/dpkg.log 2>&1 || fail "dpkg -i: $(cat /run/dpkg.log)"
[ "$(dpkg-query -W -f '${Status}' openmps)" = "install ok installed" ] || fail "the package's state"
[ -z "$(dpkg -V openmps)" ] || fail "dpkg -V: $(dpkg -V openmps)"
for file in $(dpkg -L openmps); do
    [ -e "$file" ] || fail "$file is listed and not there"
done
case $(openmps --version) in "openmps "*) ;; *) fail "openmps --version" ;; esac
echo "fine: installed"

# Nothing runs yet, and nothing is enabled: who has a GPU in use says when.
systemctl is-active -q openmps.service && fail "the service runs at once"
systemctl is-enabled -q openmps.socket && fail "the socket is enabled at once"
[ "$(stat -c '%a %U' /tmp/nvidia-mps)" = "755 root" ] || fail "/tmp/nvidia-mps is not made"
for unit in openmps.service openmps.socket openmps-cloudpods.service; do
    said=$(systemd-analyze verify "/lib/systemd/system/$unit" 2>&1) || fail "verify $unit: $said"
    [ -z "$said" ] || fail "verify $unit: $said"
done
for unit in openmps.service openmps.socket; do
    said=$(systemd-analyze --user verify "/usr/lib/systemd/user/$unit" 2>&1) || fail "verify user $unit: $said"
    [ -z "$said" ] || fail "verify user $unit: $said"
done
echo "fine: units"

bash -c '. /usr/share/bash-completion/completions/openmps
    complete -p openmps > /dev/null
    COMP_WORDS=(openmps con) COMP_CWORD=1; _openmps openmps con openmps
    case " ${COMPREPLY[*]} " in *" control "*) ;; *) exit 1 ;; esac' || fail "completion of bash"
grep -q '^#compdef openmps' /usr/share/zsh/vendor-completions/_openmps || fail "completion of zsh"
grep -q '^complete -c openmps' /usr/share/fish/vendor_completions.d/openmps.fish || fail "completion of fish"
echo "fine: completion"

# Under NVIDIA's names, as wrappers call it: two variables and nothing else.
mkdir /run/own
control() {
    env -i CUDA_MPS_PIPE_DIRECTORY=/run/own/pipe CUDA_MPS_LOG_DIRECTORY=/run/own/log OPENMPS_ENGINE=soft \
        /usr/lib/openmps/bin/nvidia-cuda-mps-control "$@"
}
control -d
[ -n "$(printf 'get_default_active_thread_percentage' | control)" ] || fail "nvidia-cuda-mps-control"
echo quit | control
control get_server_list > /dev/null 2>&1 && fail "the daemon did not quit"
/usr/lib/openmps/bin/nvidia-smi -L > /dev/null || fail "nvidia-smi"
echo "fine: NVIDIA's names"

# The socket starts the daemon, which is active when it answers.
mkdir -p /etc/systemd/system/openmps.service.d
printf '[Service]\nEnvironment=OPENMPS_ENGINE=soft\n' > /etc/systemd/system/openmps.service.d/soft.conf
systemctl daemon-reload
systemctl enable --now -q openmps.socket
export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps
openmps control get_server_list > /dev/null || fail "the socket does not start the daemon"
systemctl is-active -q openmps.service || fail "the service is not active"
said=$(openmps run -- "$program") || fail "a program: $said"
case $said in *" MiB"*) ;; *) fail "a program: $said" ;; esac
useradd -m somebody
said=$(su somebody -c "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps openmps run -- $program") || fail "a user's program: $said"

before=$(systemctl show -P MainPID openmps.service)
kill -9 "$before"
restarted() {
    now=$(systemctl show -P MainPID openmps.service)
    [ "$now" != 0 ] && [ "$now" != "$before" ] && systemctl is-active -q openmps.service
}
wait_for "killed, it is not started again" restarted
openmps run -- "$program" > /dev/null || fail "a program after the restart"
systemctl stop openmps.socket openmps.service
pgrep -x 'nvidia-cuda-mps|openmps' > /dev/null && fail "left running: $(pgrep -a 'nvidia-cuda-mps|openmps')"
userdel -r somebody
systemctl start openmps.socket
openmps control get_server_list > /dev/null || fail "stopped, it does not start again"
echo "fine: the service"

# A Cloudpods host's unit in place of it: Cloudpods' own files, 100 / 4 percent.
mkdir /etc/yunion /etc/systemd/system/openmps-cloudpods.service.d
cp /etc/systemd/system/openmps.service.d/soft.conf /etc/systemd/system/openmps-cloudpods.service.d
cat > /etc/yunion/host.conf << END
enable_cuda_mps: true
container_device_config_file: /etc/yunion/devices.yml
cuda_mps_pipe_directory: /run/cloudpods/pipe
cuda_mps_log_directory: /run/cloudpods/log
cuda_mps_replicas: 4
END
echo 'devices: []' > /etc/yunion/devices.yml
systemctl daemon-reload
systemctl start openmps-cloudpods.service || fail "the unit of Cloudpods does not start"
systemctl is-active -q openmps.service && fail "both services run"
percentage() {
    CUDA_MPS_PIPE_DIRECTORY=/run/cloudpods/pipe openmps control get_default_active_thread_percentage
}
[ "$(percentage)" = 25.0 ] || fail "Cloudpods' percentage is $(percentage)"
systemctl stop openmps-cloudpods.service
percentage > /dev/null 2>&1 && fail "Cloudpods' daemon did not end with its unit"
systemctl is-failed -q openmps-cloudpods.service && fail "Cloudpods' unit failed"
rm -r /etc/yunion /etc/systemd/system/openmps-cloudpods.service.d
systemctl daemon-reload
systemctl start openmps.socket
openmps control get_server_list > /dev/null || fail "after Cloudpods' unit it does not start again"
echo "fine: Cloudpods' unit"

# Installed over itself, it stays; what runs goes on.
before=$(systemctl show -P MainPID openmps.service)
dpkg -i "$package" > /run/dpkg.log 2>&1 || fail "dpkg -i again: $(cat /run/dpkg.log)"
[ "$(systemctl show -P MainPID openmps.service)" = "$before" ] || fail "an upgrade ended the daemon"
systemctl is-enabled -q openmps.socket || fail "an upgrade disabled the socket"
echo "fine: upgrade"

dpkg --remove openmps > /run/dpkg.log 2>&1 || fail "dpkg --remove: $(cat /run/dpkg.log)"
pgrep -x 'nvidia-cuda-mps|openmps' > /dev/null && fail "removed and running: $(pgrep -a 'nvidia-cuda-mps|openmps')"
systemctl is-enabled -q openmps.socket 2> /dev/null && fail "removed and enabled"
dpkg --purge openmps > /run/dpkg.log 2>&1 || fail "dpkg --purge: $(cat /run/dpkg.log)"
rm -r /etc/systemd/system/openmps.service.d
files > /run/after
left=$(diff /run/before /run/after || true)
[ -z "$left" ] || fail "not as it was: $left"
echo "fine: nothing is left"
