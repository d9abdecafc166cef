"""A bank on the package `mcp` of PyPI, which speaks both eras. `scripts/mcp-peers` starts it."""

import asyncio
import sys
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("bank")


class Balance(BaseModel):
    savings: int


class Account(BaseModel):
    account: Literal["savings", "giro"]
    note: str = "none"


async def ask(ctx: Context) -> Elicit[Account]:
    return Elicit("From which account?", Account)


@server.tool()
async def balance() -> Balance:
    """Returns the balance"""
    return Balance(savings=100)


@server.tool()
async def transfer(to: str, amount: int, account: Annotated[Account, Resolve(ask)]) -> str:
    """Sends money"""
    return f"sent {amount} from {account.account}"


@server.tool()
async def fail() -> str:
    """Fails"""
    raise ToolError("out of money")


@server.tool()
async def picture() -> Image:
    """Returns a picture"""
    return Image(data=b"x" * 12288, format="png")


@server.tool()
async def audit(ctx: Context) -> str:
    """Reports progress, and waits until it is cancelled"""
    for done in range(1, 4):
        await ctx.report_progress(done, 3)
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        print("the audit was cancelled", file=sys.stderr, flush=True)
        raise
    return "done"


server.run()
