// needs: graphs
// Nodes that write values to memory and wait for values there: described, captured, changed, updated.
#include "driver.h"

int main() {
    OK(cudaFree(nullptr));
    CUcontext context;
    CU(cuCtxGetCurrent, &context);
    CUstream stream;
    CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    Array<unsigned> words(16);
    words.clear();
    OK(cudaDeviceSynchronize());
    CUdeviceptr at = CUdeviceptr((unsigned *)words);
    CUstreamBatchMemOpParams operations[3] = {};
    operations[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = at;
    operations[0].writeValue.value = 5;
    operations[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[1].waitValue.address = at;
    operations[1].waitValue.value = 5;
    operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    operations[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations[2].writeValue.address = at + 8;
    operations[2].writeValue.value64 = 0x123456789abcdefull;
    CUgraph graph;
    CUgraphNode node, twin;
    CU(cuGraphCreate, &graph, 0);
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {context, 3, operations, 0}, kept = {};
    CU(cuGraphAddBatchMemOpNode, &node, graph, nullptr, 0, &params);
    operations[0].writeValue.value = 99;
    CU(cuGraphBatchMemOpNodeGetParams, node, &kept);
    CHECK(kept.count == 3 && kept.flags == 0 && kept.ctx == context && kept.paramArray[0].writeValue.value == 5, "%u, %u", kept.count, kept.paramArray[0].writeValue.value);
    operations[0].writeValue.value = 5;
    CUgraphNodeType type;
    CU(cuGraphNodeGetType, node, &type);
    CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "%d", type);
    // The same through the general interface; what is refused.
    CUgraphNodeParams general = {};
    general.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    general.memOp.ctx = context;
    general.memOp.count = 1;
    CUstreamBatchMemOpParams more = operations[0];
    more.writeValue.address = at + 16;
    more.writeValue.value = 77;
    general.memOp.paramArray = &more;
    CU(cuGraphAddNode, &twin, graph, &node, nullptr, 1, &general);
    auto refuse = [&](CUDA_BATCH_MEM_OP_NODE_PARAMS params) {
        CUgraphNode none;
        CUresult got = DRIVER(cuGraphAddBatchMemOpNode)(&none, graph, nullptr, 0, &params);
        CHECK(got == CUDA_ERROR_INVALID_VALUE, "%d", got);
    };
    std::vector<CUstreamBatchMemOpParams> many(256, operations[0]);
    refuse({nullptr, 3, operations, 0});
    refuse({context, 256, many.data(), 0});
    refuse({context, 3, operations, 1});
    refuse({context, 1, nullptr, 0});
    more.writeValue.address = at + 1;
    refuse({context, 1, &more, 0});
    more.operation = CUstreamBatchMemOpType(9);
    refuse({context, 1, &more, 0});

    CUgraphExec exec;
    CU(cuGraphInstantiateWithFlags, &exec, graph, 0);
    auto run = [&] {
        CU(cuGraphLaunch, exec, stream);
        CU(cuStreamSynchronize, stream);
        return words.host();
    };
    auto got = run();
    CHECK(got[0] == 5 && got[2] == 0x89abcdef && got[3] == 0x1234567 && got[4] == 77, "%u %x %x %u", got[0], got[2], got[3], got[4]);
    // Values and addresses may change in an executable graph, the number and the kinds of operations may not.
    operations[0].writeValue.value = operations[1].waitValue.value = 6;
    params.count = 2;
    CUresult fewer = DRIVER(cuGraphExecBatchMemOpNodeSetParams)(exec, node, &params);
    CHECK(fewer == CUDA_ERROR_INVALID_VALUE, "%d", fewer);
    params.count = 3;
    CU(cuGraphExecBatchMemOpNodeSetParams, exec, node, &params);
    CHECK(run()[0] == 6, "%u", words.host()[0]);
    CUresult disabled = DRIVER(cuGraphNodeSetEnabled)(exec, node, 0);
    CHECK(disabled == CUDA_ERROR_INVALID_VALUE, "%d", disabled);
    CUgraphExecUpdateResultInfo info = {};
    CU(cuGraphExecUpdate, exec, graph, &info);
    CHECK(run()[0] == 5, "%u", words.host()[0]);
    params.count = 2;
    CU(cuGraphBatchMemOpNodeSetParams, node, &params);
    CUresult other = DRIVER(cuGraphExecUpdate)(exec, graph, &info);
    CHECK(other == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE && info.result == CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, "%d, %d", other, info.result);
    CU(cuGraphExecDestroy, exec);
    CU(cuGraphDestroy, graph);

    // Captured: one node for each call.
    CU(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CU(cuStreamWriteValue32, stream, at, 40, 0);
    CU(cuStreamWaitValue32, stream, at, 40, CU_STREAM_WAIT_VALUE_EQ);
    operations[0].writeValue.address = operations[1].waitValue.address = at + 20;
    CU(cuStreamBatchMemOp, stream, 3, operations, 0);
    CU(cuStreamEndCapture, stream, &graph);
    CUgraphNode nodes[8];
    size_t count = 8;
    CU(cuGraphGetNodes, graph, nodes, &count);
    CHECK(count == 3, "%zu nodes", count);
    for (size_t i = 0; i < count; i++) {
        CU(cuGraphNodeGetType, nodes[i], &type);
        CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, "%d", type);
    }
    words.clear();
    OK(cudaDeviceSynchronize());
    CU(cuGraphInstantiateWithFlags, &exec, graph, 0);
    got = run();
    CHECK(got[0] == 40 && got[5] == 6 && got[3] == 0x1234567, "%u %u %x", got[0], got[5], got[3]);
    CU(cuGraphExecDestroy, exec);
    CU(cuGraphDestroy, graph);
    printf("two nodes, three captured\n");
    return check::pass();
}
