// Offers a tool that is written in Node: node provider.mjs [ADDRESS of the tools service]
import { fileURLToPath } from 'node:url'
import grpc from '@grpc/grpc-js'
import loader from '@grpc/proto-loader'

const PROTOS = fileURLToPath(new URL('../../../proto', import.meta.url))
const ADDRESS = process.argv[2] ?? '127.0.0.1:50056'

// Each tool: what models see of it, and the function that runs a call.
const TOOLS = {
  slug: {
    definition: {
      name: 'slug',
      description: 'Turns a title into a slug for a URL.',
      parameters_json: JSON.stringify({
        type: 'object',
        properties: { title: { type: 'string', maxLength: 200 } },
        required: ['title'],
        additionalProperties: false,
      }),
      safety: 'TOOL_SAFETY_NONE',
      idempotent: true,
    },
    run({ title }) {
      const slug = title.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '')
      if (!slug) throw new Error('the title has no letter or digit')
      return slug
    },
  },
}

const definition = loader.loadSync('pagantic/tools/v1/tools_service.proto', { includeDirs: [PROTOS], keepCase: true, enums: String, oneofs: true })
const { ToolProviderService } = grpc.loadPackageDefinition(definition).pagantic.tools.v1
const service = new ToolProviderService(ADDRESS, grpc.credentials.createInsecure())
const noted = (error) => error && console.error(error.details)

let offerId = ''

async function run(call) {
  const answer = { offer_id: offerId, call_id: call.id }
  try {
    answer.result = String(await TOOLS[call.name].run(JSON.parse(call.arguments_json)))
  } catch (error) {
    answer.error = error.message
  }
  service.AnswerToolCall(answer, noted)
}

function offer() {
  const stream = service.OfferTools({ name: 'node', tools: Object.values(TOOLS).map((tool) => tool.definition) })
  stream.on('data', (message) => {
    if (message.event === 'offered') {
      offerId = message.offered.offer_id
      console.log(`offered: ${message.offered.tools.map((tool) => tool.definition.name).join(', ')}`)
    } else if (message.event === 'call') {
      run(message.call.call)
    } else if (message.event === 'health_check') {
      service.AnswerHealthCheck({ offer_id: offerId }, noted)
    }
  })
  stream.on('error', (error) => {
    console.error(`the offer has ended: ${error.details}; it is made again`)
    setTimeout(offer, 1000)
  })
}

offer()
