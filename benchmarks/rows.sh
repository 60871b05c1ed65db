#!/usr/bin/env bash
# Measures the rows of an NVIDIA GPU that are committed, part by part, into a new folder:
#
#   benchmarks/rows.sh FOLDER [PART...]
#
# Parts: tuning effort binary gemm darknet mobilenet blocks pointwise; all where none is named. A
# command that takes longer than its limit is ended, and the rows of its finished cases stay. DATA
# is the folder with published sparse weights, MODELS the one with ONNX networks, binary and pruned;
# what needs one that is not there is left out. COMMIT is the commit that is measured, where there
# is no git to ask. What PyTorch compiles is compiled ahead, side by side, which no time includes.
set -uo pipefail
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
parts="tuning effort binary gemm darknet mobilenet blocks pointwise"
for part in "$@"; do
    [[ " $parts " == *" $part "* ]] || { echo "no part $part; there are: $parts" >&2; exit 2; }
done
mkdir -p "$folder" && cd "$folder" || exit 2
commit=${COMMIT:-$(git -C "$here" rev-parse HEAD)} || exit 2
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/inductor}
python=${PYTHON:-python3}

rows() { # SECONDS FILE ARGUMENTS...: one command of `gossamer bench`, whose rows go to FILE
    local limit=$1 file=$2 start=$SECONDS
    shift 2
    timeout -s INT "$limit" gossamer bench "$@" --commit "$commit" -o "$file" >>log.txt 2>&1
    echo "$((SECONDS - start)) s, status $?: gossamer bench $*"
}

compile_ahead() { # SUITE:CASE:BATCH:PRECISION...
    printf '%s\n' "$@" | OMP_NUM_THREADS=1 xargs -P "$(nproc)" -I{} timeout 100 "$python" \
        "$here/compile_ahead.py" {} >>log.txt 2>&1
}

linked() { # NAME FOLDER: gives a folder that is there this short name here
    [ -n "$2" ] && [ -d "$2" ] && ln -sfn "$(cd "$here" && cd "$2" && pwd)" "$1"
}
linked data "${DATA:-}"
linked models "${MODELS:-}"

# the choice alone, beside the peer that is the fastest of PyTorch
peer="--effort quick --forced none --against torch-compile-graph"

tuning() {
    rows 150 tuning.jsonl tuning --case mobilenetv2/quick --batch 1,64 --precision fp32,tf32,fp16 \
        --against none
    rows 90 tuning.jsonl tuning --case resnet50/quick --batch 1 --precision fp16 --effort quick
    if [ -e data ]; then
        rows 130 tuning.jsonl tuning --data data --case resnet50-dlmc-0.90/quick --batch 1,64 \
            --precision fp16 --effort quick --against none
    fi
    rows 200 tuning.jsonl tuning --case mobilenetv2/normal --batch 1,64 \
        --precision fp32,tf32,fp16 --against none
}

# whether the plans of quick and normal are as fast as those of max, and how fast one of ten seconds
# is; the lines are no rows
effort() {
    local networks=(mobilenet_v2) out=$PWD network
    [ -e models ] && networks+=("$out"/models/*w1a1*.onnx.gz "$out"/models/squeezenet*.onnx.gz)
    (
        cd "$here/.." || exit
        for network in "${networks[@]}"; do
            timeout -s INT 300 "$python" -m tests.plan.efforts "$network" --plans quick,normal,max
        done
        [ ! -e "$out/data" ] || timeout -s INT 200 "$python" -m tests.plan.efforts \
            resnet50-dlmc-0.90 --batch 1 --data "$out/data" --plans quick:10,quick
    ) >>effort.txt 2>>log.txt
}

binary() {
    compile_ahead binary-networks:resnet18-binary:{1,512}:fp16 \
        binary-networks:resnet18-binary-body:1:fp16
    rows 110 binary-networks.jsonl binary-networks --case resnet18-binary --batch 1 \
        --precision fp16 $peer
    rows 90 binary-networks.jsonl binary-networks --case resnet18-binary-body --batch 1 \
        --precision fp16 $peer,torch-graph
    if [ -e models ]; then
        local files=()
        for file in models/*w1a1*.onnx.gz; do files+=(--model "$file"); done
        rows 120 binary-networks.jsonl binary-networks "${files[@]}" --case w1a1 --batch 1 \
            --precision fp32,fp16 $peer
    fi
    rows 110 binary-layers.jsonl binary-layers --batch 128 --precision fp32,fp16 --effort quick \
        --case vgg/conv3_2,vgg/conv4,vgg/conv5,layer4.3x3,layer3.3x3,layer4.first,pointwise \
        --forced none --against torch-graph
    rows 40 binary-layers.jsonl binary-layers --case vgg/conv4_2 --batch 128 --precision fp16 \
        --effort quick --forced popcount --against none
    rows 40 binary-layers.jsonl binary-layers --case vgg/conv4_2 --batch 128 --precision fp16 \
        --effort quick --forced none --against none --device opencl:0
    rows 200 binary-networks.jsonl binary-networks --case resnet18-binary --batch 512 \
        --precision fp16 $peer
}

gemm() {
    rows 60 gemm.jsonl gemm --case 512,1024,2048,4096,8192 --batch 1 --effort quick \
        --forced tiled_gemm,published --against cublas
    rows 40 gemm.jsonl gemm --case 4096 --batch 1 --effort quick --forced tiled_gemm,published \
        --against none --device opencl:0
}

darknet() {
    compile_ahead darknet:yolov4-tiny:1:fp32
    rows 60 darknet.jsonl darknet --case yolov4-tiny --batch 1 $peer
    rows 60 darknet.jsonl darknet --case yolov4-tiny --batch 1 --effort quick --forced none \
        --against none --device opencl:0
    rows 150 darknet-layers.jsonl darknet-layers --case yolov2-tiny --batch 1,32 --effort quick \
        --against torch-graph
    rows 150 darknet-layers.jsonl darknet-layers --case yolov4-tiny --batch 32 --effort quick \
        --against torch-graph
}

mobilenet() {
    local others=(mobilenetv3-small efficientnet-b0 mnasnet mobilenetv1 mobilenetv2-0.5
                  mobilenetv2-1.4)
    local specs=(mobilenet:mobilenetv2:1:{fp32,tf32,fp16} mobilenet:mobilenetv2:{8,64,256}:fp16)
    for name in "${others[@]}"; do specs+=(mobilenet:"$name":{1,64}:fp16); done
    compile_ahead "${specs[@]}"
    rows 120 mobilenet.jsonl mobilenet --case mobilenetv2 --batch 1 --precision fp32,tf32,fp16 \
        $peer,jax-jit
    rows 150 mobilenet.jsonl mobilenet --case mobilenetv2 --batch 64,256,8 --precision fp16 \
        $peer,jax-jit
    for name in "${others[@]}"; do
        rows 80 mobilenet.jsonl mobilenet --case "$name" --batch 1,64 --precision fp16 $peer
    done
}

# the blocks of MobileNetV2, each as one kernel or layer by layer
blocks() {
    rows 400 mobilenet-blocks.jsonl mobilenet-blocks --batch 1,64 --precision fp32,fp16 \
        --effort quick --forced unfused --against torch-graph
}

pointwise() {
    for name in mobilenetv2 resnet50; do
        rows 400 pointwise-layers.jsonl pointwise-layers --case "$name/" --batch 1,64 \
            --precision tf32,fp16 --effort quick --forced pointwise_mma \
            --against cudnn,cublas-lowering,torch-graph
    done
}

for part in ${*:-$parts}; do
    "$part"
done
