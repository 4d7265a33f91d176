#!/bin/bash
# What an instance of this stack does at boot: it learns from its tags which run it serves and from the table which image
# that run uses, then starts the agent and the trainer. Words between @ signs are filled in by cdk_app/userdata.py.
# Everything that is not the same on every machine can be set from outside, so the rehearsal runs this very text.
set -euo pipefail

imds="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}"
runtime="${SPOTPROOF_RUNTIME_DIR:-@runtime_dir@}"
scratch="${SPOTPROOF_SCRATCH_DIR:-@scratch_dir@}"
region='@region@'

say() { printf 'spotproof: %s\n' "$*" >&2; }
stop() {
  say "$*"
  exit 1
}

# A fresh instance answers late now and then, and its role's credentials may come half a minute later still.
patiently() {
  local attempt
  for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if "$@"; then return 0; fi
    say "attempt $attempt failed: $1"
    sleep 3
  done
  return 1
}

ask_imds() { curl --silent --show-error --fail --noproxy '*' --max-time 5 --retry 5 --retry-connrefused "$@"; }
metadata() { ask_imds --header "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/$1"; }

token="$(ask_imds --request PUT --header 'X-aws-ec2-metadata-token-ttl-seconds: 600' "$imds/latest/api/token")" ||
  stop 'the metadata service gives no token; this script needs IMDSv2 (HttpEndpoint enabled)'
instance="$(metadata instance-id)"
run="$(metadata 'tags/instance/@tag_run@')" ||
  stop "this instance has no readable tag @tag_run@, so it belongs to no run and nothing is started. Launch through \`spotproof submit\`, or tag an instance whose image brings its own agent"
[[ "$run" =~ ^@run_id_pattern@$ ]] || stop "the tag @tag_run@ is '$run', which is not a run id; nothing is started"
launch="$(metadata 'tags/instance/@tag_launch@')" || launch=''

image_of_run() {
  image="$(aws dynamodb get-item --region "$region" --table-name '@table@' --consistent-read \
    --key "@spec_key@" --query Item.image.S --output text)" && [[ -n "$image" && "$image" != None ]]
}
patiently image_of_run || stop "the table @table@ has no spec of run '$run' that this instance can read; nothing is started"

# Local copies of checkpoints belong on the instance's own NVMe. Some images mount it themselves.
find_scratch() {
  local disks disk
  if mountpoint --quiet /opt/dlami/nvme; then
    scratch=/opt/dlami/nvme/spotproof
    return
  fi
  mapfile -t disks < <(lsblk --nodeps --paths --noheadings --output NAME,MODEL | awk '/Instance Storage/ {print $1}')
  ((${#disks[@]} > 0)) || return 0
  disk="${disks[0]}"
  if ((${#disks[@]} > 1)); then
    disk=/dev/md/spotproof
    mdadm --create "$disk" --run --level=0 --raid-devices="${#disks[@]}" "${disks[@]}"
  fi
  mkfs.ext4 -q -m 0 -E nodiscard "$disk"
  mkdir -p "$scratch"
  mount -o noatime "$disk" "$scratch"
}
if [[ -z "${SPOTPROOF_SCRATCH_DIR:-}" ]]; then
  find_scratch || say "the local disks cannot be used; checkpoints are staged on the root disk"
fi

mkdir -p "$runtime/@requests@" "$scratch"
cat > "$runtime/agent.env" <<END
@agent_environment@
END
cat > "$runtime/trainer.env" <<END
@trainer_environment@
END

registry="${image%%/*}"
if [[ "$registry" =~ \.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com ]]; then
  registry_region="${BASH_REMATCH[1]}"
  log_in() {
    aws ecr get-login-password --region "$registry_region" |
      docker login --username AWS --password-stdin "$registry"
  }
  patiently log_in || stop "no login to $registry: the node role reads repositories of this account only"
fi

gpus=()
if nvidia-smi -L > /dev/null 2>&1; then gpus=(--gpus=all); fi
half_memory="$(awk '/^MemTotal:/ {print int($2 / 2)}' /proc/meminfo)k"
# Logs never hold up training: what does not fit the buffer is dropped.
logs=(--log-driver=awslogs "--log-opt=awslogs-region=$region" '--log-opt=awslogs-group=@log_group@'
  --log-opt=mode=non-blocking --log-opt=max-buffer-size=4m)

start_agent() {
  docker run -d --name=@agent_container@ --restart=on-failure --network=host --pid=host --ulimit=memlock=-1 \
    "${logs[@]}" "--log-opt=awslogs-stream=$instance/agent" \
    -v "$runtime:$runtime" -v "$scratch:$scratch" --env-file "$runtime/agent.env" \
    --entrypoint=spotproof "$image" agent
}
start_trainer() {
  docker run -d --name=@trainer_container@ --network=@trainer_network@ "${gpus[@]}" \
    "--shm-size=$half_memory" --ulimit=memlock=-1 \
    "${logs[@]}" "--log-opt=awslogs-stream=$instance/trainer" \
    -v "$runtime:$runtime" -v "$scratch:$scratch" --env-file "$runtime/trainer.env" \
    "$image"
}
start_agent || stop "the agent's container does not start from $image"
start_trainer || stop "the trainer's container does not start from $image"
say "run $run on $instance (launch ${launch:-none}): agent and trainer started from $image"
