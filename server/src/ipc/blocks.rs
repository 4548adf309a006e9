//! Blocks of device memory that clients share: those of this client that others may open, and those of others that it
//! has open.
//!
//! Called by the session's operations and when it frees. Others' blocks are found by tokens (`exports`): one of a client of
//! this server lies where its owner has it, one of another server is mapped at addresses of this client's (`foreign_block`). Must
//! not know quotas, rings or streams: the session says when no work uses a block any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{Client, Window};
use protocol::operations::MemImportReply;

use crate::ipc::elsewhere::ForeignObject;
use crate::ipc::exports::{Export, ExportedObject, Found, Import, SharedBlock, Token, UserExports};
use crate::ipc::foreign_block::MappedBlock;
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::{ClientMemory, MemoryBlock};
use crate::session::observer::ClientObserver;

/// Blocks of others that a client may have open; more are refused, so that it cannot fill the server.
const MAX_IMPORTS: usize = 1 << 14;

/// A client's shared blocks.
#[derive(Debug)]
pub struct SharedBlocks {
    user_exports: UserExports,
    /// Blocks of this client that others may open, by address.
    exports: HashMap<u64, ExportedBlock>,
    /// Blocks that this client has freed and others still use.
    lingering: Vec<(MemoryBlock, Arc<SharedBlock>)>,
    /// Blocks of others that this client has open, by address.
    imports: BTreeMap<u64, OpenImport>,
    /// Where those are that belong to clients of other servers.
    elsewhere: HashMap<Token, u64>,
}

#[derive(Debug)]
struct ExportedBlock {
    export: Export,
    block: Arc<SharedBlock>,
}

/// Another client's block that this one has open.
#[derive(Debug)]
struct OpenImport {
    memory: ImportedBlock,
    reply: MemImportReply,
    /// How often it was opened and not closed for good.
    count: u64,
    /// How often of that it is about to be closed.
    closing: u64,
}

#[derive(Debug)]
enum ImportedBlock {
    /// Of a client of this server.
    Here(Import),
    /// Of a client of another one, which has it by this token.
    Elsewhere(Token, MappedBlock),
}

impl SharedBlocks {
    /// Of a client that shares none yet.
    #[must_use]
    pub fn new(user_exports: UserExports) -> Self {
        Self {
            user_exports,
            exports: HashMap::new(),
            lingering: Vec::new(),
            imports: BTreeMap::new(),
            elsewhere: HashMap::new(),
        }
    }

    /// Offers the first `bytes` bytes of a block of this client's to others.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is no such block, and what the engine and the registry say.
    pub fn export(
        &mut self,
        (address, bytes): (u64, u64),
        memory: &ClientMemory,
        client: &mut dyn Client,
        owner: &Arc<ClientObserver>,
    ) -> Result<Token, CUresult> {
        let block = memory.device_block(address);
        let (device, whole) = block.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if bytes == 0 || bytes > whole {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if let Some(exported) = self.exports.get(&address) {
            return Ok(exported.export.token());
        }
        let range = Window {
            base: address,
            bytes,
        };
        let shared = client.share(range)?;
        let session = owner.session();
        let block = SharedBlock::new(session, device, range, shared, owner.clone());
        let block = Arc::new(block);
        let object = ExportedObject::Block(block.clone());
        let export = self.user_exports.offer(object)?;
        let token = export.token();
        self.exports
            .insert(address, ExportedBlock { export, block });
        Ok(token)
    }

    /// Opens another client's block.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when there is none of this token, CUDA_ERROR_INVALID_CONTEXT for an own one,
    /// CUDA_ERROR_OUT_OF_MEMORY for too many, and what the engine says.
    pub fn import(
        &mut self,
        token: &Token,
        own_session: u64,
        memory: &mut ClientMemory,
        mut backing: ClientBacking<'_>,
    ) -> Result<MemImportReply, CUresult> {
        if let Some(address) = self.elsewhere.get(token)
            && let Some(opened) = self.imports.get_mut(address)
        {
            opened.count += 1;
            return Ok(opened.reply);
        }
        let full = self.imports.len() >= MAX_IMPORTS;
        let full = full.then_some(CUresult::ERROR_OUT_OF_MEMORY);
        match self.user_exports.find(token)? {
            Some(Found::Here(ExportedObject::Block(block))) => {
                if block.session == own_session {
                    return Err(CUresult::ERROR_INVALID_CONTEXT);
                }
                if let Some(opened) = self.imports.get_mut(&block.range.base) {
                    opened.count += 1;
                    return Ok(opened.reply);
                }
                full.map_or(Ok(()), Err)?;
                let import = block.import()?;
                backing.0.import(&block.held)?;
                let reply = MemImportReply {
                    address: block.range.base,
                    bytes: block.range.bytes,
                    device: block.device,
                };
                self.add_import(ImportedBlock::Here(import), reply);
                Ok(reply)
            }
            Some(Found::Elsewhere(ForeignObject::Block(block))) => {
                full.map_or(Ok(()), Err)?;
                let mapped = MappedBlock::map(block, memory, &mut backing)?;
                let reply = mapped.reply();
                self.elsewhere.insert(*token, reply.address);
                self.add_import(ImportedBlock::Elsewhere(*token, mapped), reply);
                Ok(reply)
            }
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    fn add_import(&mut self, memory: ImportedBlock, reply: MemImportReply) {
        let opened = OpenImport {
            memory,
            reply,
            count: 1,
            closing: 0,
        };
        self.imports.insert(reply.address, opened);
    }

    /// Notes that another client's block is to be closed. [`Self::close_import`] does it once no work of this client
    /// uses it any more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when it is not open, or as often to be closed as it was opened.
    pub fn begin_close_import(&mut self, address: u64) -> Result<(), CUresult> {
        let opened = self.imports.get_mut(&address);
        let opened = opened
            .filter(|opened| opened.closing < opened.count)
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        opened.closing += 1;
        Ok(())
    }

    /// Closes another client's block, which no work of this one uses any more. One of another server is only taken from
    /// whatever this client begins from now on, and given back, to be [ended](MappedBlock::end) when all is over that it has begun
    /// before.
    #[must_use]
    pub fn close_import(&mut self, address: u64, client: &mut dyn Client) -> Option<MappedBlock> {
        let opened = self.imports.get_mut(&address)?;
        opened.closing -= 1;
        opened.count -= 1;
        if opened.count > 0 {
            return None;
        }
        match self.imports.remove(&address)?.memory {
            ImportedBlock::Here(import) => {
                client.close(&import.block().held);
                None
            }
            ImportedBlock::Elsewhere(token, mapped) => {
                self.elsewhere.remove(&token);
                mapped.withdraw(client);
                Some(mapped)
            }
        }
    }

    /// Keeps a block that this client has freed, if others use it; else gives it back.
    #[must_use]
    pub fn keep_if_used(&mut self, block: MemoryBlock) -> Option<MemoryBlock> {
        let Some(ExportedBlock {
            export,
            block: shared,
        }) = self.exports.remove(&block.start())
        else {
            return Some(block);
        };
        drop(export);
        if shared.close() {
            return Some(block);
        }
        self.lingering.push((block, shared));
        None
    }

    /// Takes the blocks out that this client has freed and that others do not use any more.
    pub fn remove_unused(&mut self) -> Vec<MemoryBlock> {
        let unused = self
            .lingering
            .extract_if(.., |(_, shared)| shared.is_unused());
        unused.map(|(block, _)| block).collect()
    }

    /// Has what others still use of the client's blocks count for its group until they have left it.
    pub fn pass_to_group(&self, memory: &mut ClientMemory) {
        for (address, exported) in &self.exports {
            if let Some((device, bytes)) = memory.device_block(*address) {
                exported
                    .block
                    .set_group_charge(memory.pass_to_group(device, bytes));
            }
        }
        for (block, shared) in &self.lingering {
            shared.set_group_charge(memory.pass_to_group(shared.device, block.bytes()));
        }
    }
}
